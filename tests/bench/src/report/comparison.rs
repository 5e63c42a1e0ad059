//! Two builds of Gantry measured in turns: the medians of their rounds, and the ratios.

use comfy_table::{Table, presets};

use super::{Report, Side, figure, percentile, quotient, right, times};

/// The comparison as a table. The reports are those of the two builds in turns.
pub(crate) fn table(reports: &[Report]) -> String {
    let [first, second, ..] = reports else { return String::new() };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["measured", "unit", "p50", "against", "ratio", "p95", "against", "ratio"]);
    for side in &first.sides {
        let mut row = vec![side.name.to_string(), side.unit.name().to_owned()];
        for value in [|side: &Side| side.p50, |side: &Side| side.p95] {
            let [ours, other] = [0, 1].map(|build| median(&reports[build..], &side.name, value));
            row.extend([figure(ours), figure(other), times(quotient(ours, other))]);
        }
        table.add_row(row);
    }
    right(&mut table, 2..=7);
    let head = format!(
        "{}: {} against {}, medians of {} rounds of {} runs, {}",
        first.benchmark,
        first.gantry,
        second.gantry,
        reports.len() / 2,
        first.runs,
        first.conditions()
    );
    let failures = reports.iter().flat_map(|report| {
        report.failures().map(|failure| format!("{}: {failure}", report.gantry)).collect::<Vec<_>>()
    });
    [head, table.to_string()].into_iter().chain(failures).collect::<Vec<_>>().join("\n\n")
}

/// The median of a side's values in every second report.
fn median(reports: &[Report], side: &str, value: fn(&Side) -> Option<f64>) -> Option<f64> {
    let mut values: Vec<f64> = reports.iter().step_by(2).filter_map(|report| value(report.find(side)?)).collect();
    values.sort_by(f64::total_cmp);
    percentile(&values, 50)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{
        super::{Series, Unit},
        *,
    };

    #[test]
    fn each_builds_rounds_have_their_median() {
        let rounds = [("new", 4.0), ("old", 9.0), ("new", 90.0), ("old", 10.0), ("new", 5.0), ("old", 1.0)];
        let reports = rounds.map(|(gantry, sample)| {
            let mut report = Report::new("t".into(), 1, Path::new(gantry)).unwrap();
            let mut series = Series::new("a call", Unit::Ms);
            series.extend([Ok(sample), Err(format!("{sample} failed").into())]);
            report.side(series);
            report
        });
        let table = table(&reports);
        let row = table.lines().find(|line| line.contains("a call")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["a call", "ms", "5.000", "9.000", "0.56 x", "5.000", "9.000", "0.56 x"]);
        assert!(table.starts_with("t: new against old, medians of 3 rounds of 1 runs"), "{table}");
        assert!(table.contains("old: a call: 1 of 2 failed, the first: 10 failed"), "{table}");
    }
}
