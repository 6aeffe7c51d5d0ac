//! Test reports in JUnit's XML, for services that do continuous integration.

/// The outcome of a test case, with a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed(String),
    /// Nothing is proven.
    Error(String),
}

/// The cases of one report.
pub struct Suite {
    /// The name of the suite, and the class of each case.
    name: &'static str,
    cases: String,
    tests: usize,
    failures: usize,
    errors: usize,
}

impl Suite {
    pub fn new(name: &'static str) -> Suite {
        Suite { name, cases: String::new(), tests: 0, failures: 0, errors: 0 }
    }

    /// Adds a case. `details` are further lines on the outcome.
    pub fn case(&mut self, name: &str, outcome: Outcome, details: &str) {
        let (class, name) = (self.name, escape(name));
        self.tests += 1;
        self.cases += &format!("    <testcase classname=\"{class}\" name=\"{name}\"");
        let (kind, message) = match outcome {
            Outcome::Passed => return self.cases += "/>\n",
            Outcome::Failed(message) => ("failure", message),
            Outcome::Error(message) => ("error", message),
        };
        *if kind == "failure" { &mut self.failures } else { &mut self.errors } += 1;
        self.cases += &format!("><{kind} message=\"{}\"", escape(&message));
        self.cases += &match details {
            "" => "/></testcase>\n".to_owned(),
            details => {
                let lines: Vec<_> = details.lines().map(escape).collect();
                format!(">{}</{kind}></testcase>\n", lines.join("\n"))
            }
        };
    }

    /// The report. `properties` apply to all its cases.
    pub fn report(&self, properties: &[(&str, &str)]) -> String {
        let property = |(name, value): &(&str, &str)| {
            format!("      <property name=\"{name}\" value=\"{}\"/>\n", escape(value))
        };
        let properties: String = properties.iter().map(property).collect();
        let Suite { name, cases, tests, failures, errors } = self;
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{name}\" tests=\"{tests}\" \
             failures=\"{failures}\" errors=\"{errors}\">\n    <properties>\n{properties}    </properties>\n{cases}  \
             </testsuite>\n</testsuites>\n"
        )
    }
}

/// Escapes text for an attribute's value.
fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    escaped.chars().map(|it| if it.is_control() { ' ' } else { it }).collect()
}
