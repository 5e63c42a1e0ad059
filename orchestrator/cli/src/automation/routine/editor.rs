//! A routine's definition in the person's editor, as YAML.

use std::{
    io::{IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

use base::Environment;
use protocol::CreateRoutine;

use crate::{exit::CliError, input, unix::create_private_file};

const DEFAULT_EDITOR: &str = "vi";
const HEAD: &str = "# Save and close to change the routine; close without changes to leave it as it is.\n\
                    # Secrets are kept unless a new one is added (trigger.secret, notify.webhook_secret).\n";

/// Opens the definition in `$VISUAL` or `$EDITOR`. `None` if it was left as it is. What cannot be read is kept in its
/// file.
pub(super) fn edit(current: &CreateRoutine, environment: &Environment) -> Result<Option<CreateRoutine>, CliError> {
    let named = environment.get("VISUAL").or_else(|| environment.get("EDITOR"));
    if named.is_none() && !std::io::stdin().is_terminal() {
        return Err(CliError::Usage(
            "there is no terminal for an editor; say what to change with flags or --patch".to_owned(),
        ));
    }
    let yaml = serde_saphyr::to_string(current)
        .map_err(|error| CliError::failed("cannot write the routine as YAML", error))?;
    let before = format!("{HEAD}{yaml}");
    let file = DefinitionFile::create(&before)?;
    open(named.unwrap_or(DEFAULT_EDITOR), &file.path)?;
    let after = std::fs::read_to_string(&file.path).map_err(|error| CliError::failed("cannot read the file", error))?;
    if after == before {
        file.remove();
        return Ok(None);
    }
    match input::yaml::<CreateRoutine>("the edited routine", &after) {
        Ok(edited) => {
            file.remove();
            Ok((edited != *current).then_some(edited))
        }
        Err(error) => Err(CliError::Usage(format!("{error}; the text is in {}", file.path.display()))),
    }
}

/// A file that only this user can read.
struct DefinitionFile {
    path: PathBuf,
}

impl DefinitionFile {
    fn create(text: &str) -> Result<Self, CliError> {
        let path = std::env::temp_dir().join(format!("gantry-routine-{:016x}.yaml", rand::random::<u64>()));
        let failed = |error| CliError::failed("cannot write a temporary file", error);
        let mut file = create_private_file(&path).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(Self { path })
    }

    fn remove(&self) {
        // It is in the directory for temporary files.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs the editor through a shell, as the variable may have arguments.
fn open(program: &str, file: &Path) -> Result<(), CliError> {
    let status = Command::new("sh").arg("-c").arg(format!("{program} \"$1\"")).arg("sh").arg(file).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(CliError::Failed(format!("the editor {program} ended with {status}; nothing was changed"))),
        Err(error) => Err(CliError::failed(&format!("cannot start the editor {program}"), error)),
    }
}
