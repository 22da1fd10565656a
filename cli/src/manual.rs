//! The manual page, the list of words in docs/CLI.md, and completions for shells.
//!
//! Problem: each list of words that is written by hand is out of date.
//! Source: [`table`], and the definition of the command line.
//! Law: all of them come out of the table, as parser and help do; a test says whether the files kept in `docs/` are what
//! comes out now.
//! Left out: writing them anywhere.

use std::fmt::Write as _;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::words::table::{self, Group, Word};

/// Name of the command, of its page and in completions.
const NAME: &str = "ucake";

/// A section that the definition of the command line does not hold.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Its heading.
    pub title: &'a str,
    /// Its text, printed line by line as it stands.
    pub text: &'a str,
}

/// The page `ucake.8` for `command`, with `sections` before the words of CAKE.
pub fn page(command: &Command, sections: &[Section<'_>]) -> String {
    let mut command = command.clone();
    command.build();
    let man = Man::new(command.clone())
        .title("UCAKE")
        .section("8")
        .date("")
        .source(format!("{NAME} {}", env!("CARGO_PKG_VERSION")))
        .manual("System administration");
    let mut page = rendered(|out| {
        man.render_title(out)?;
        man.render_name_section(out)?;
        man.render_synopsis_section(out)?;
        man.render_description_section(out)?;
        man.render_options_section(out)
    });
    for subcommand in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        page += &subcommand_sections(subcommand);
    }
    for Section { title, text } in sections {
        page += &verbatim(title, text);
    }
    once(PREAMBLE, &(page + &word_sections() + &closing()))
}

/// What `roff` puts before each piece of a page, so that apostrophes stay as they are.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// `text` with `line` at its front and nowhere else.
fn once(line: &str, text: &str) -> String {
    line.to_owned() + &text.replace(line, "")
}

/// What `render` writes into memory.
fn rendered(render: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    render(&mut bytes).expect("memory takes what is written");
    String::from_utf8(bytes).expect("help is text")
}

/// What the subcommand does, its options, and its examples, under a heading with its name.
fn subcommand_sections(subcommand: &Command) -> String {
    let name = subcommand.get_name();
    let man = Man::new(subcommand.clone());
    let body = rendered(|out| {
        man.render_description_section(out)?;
        man.render_options_section(out)
    });
    let heading = format!(".SH \"{NAME} {name}\"\n{NAME} {}\n.PP", usage(subcommand));
    let body = body.replace(".SH DESCRIPTION", &heading).replace(".SH OPTIONS\n", "");
    let examples = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
    // The heading is ours, and words have sections of their own.
    let examples = examples.trim_start_matches("Examples:\n");
    let examples = examples.split("\n\n").next().unwrap_or_default();
    if examples.is_empty() {
        body
    } else {
        body + &verbatim(&format!("Examples of {name}"), examples)
    }
}

/// `run [OPTIONS] <LAN> <WAN>`.
fn usage(subcommand: &Command) -> String {
    let arguments = subcommand.get_positionals().map(|argument| format!(" {argument}"));
    format!("{} [OPTIONS]{}", subcommand.get_name(), arguments.collect::<String>())
}

/// Text as it stands.
fn verbatim(title: &str, text: &str) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [title.to_uppercase().as_str()]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.render()
}

/// The table of words, a paragraph each.
fn word_sections() -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["WORDS OF CAKE"]);
    roff.text([roman(
        "Words are read from left to right; of those that contradict each other the last counts, but presets of the \
         overhead add to what stands before them. What is marked with a star holds when nothing is said.",
    )]);
    for Group { title, words } in table::GROUPS {
        roff.control("SS", [*title]);
        for word in *words {
            roff.control("TP", []);
            roff.text(heading(word));
            roff.text([roman(word.help)]);
        }
    }
    roff.control("SH", ["VALUES"]);
    roff.text([roman(table::UNITS.replace('\n', " "))]);
    roff.render()
}

fn heading(word: &Word) -> Vec<Inline> {
    let mut line = vec![bold(word.name)];
    if !word.value.placeholder().is_empty() {
        line.extend([roman(" "), italic(word.value.placeholder())]);
    }
    if let Some(synonym) = word.synonym {
        line.extend([roman(", "), bold(synonym)]);
    }
    if word.default {
        line.push(roman(" *"));
    }
    line
}

fn closing() -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(
        "0 done, 1 refused by the system, 2 bad usage, 130 a laboratory stopped by a signal before its end.",
    )]);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("tc"), roman("(8), "), bold("tc-cake"), roman("(8)")]);
    roff.render()
}

/// The table of words for docs/CLI.md.
///
/// ```
/// assert!(ucake_cli::manual::word_list().contains("| `bandwidth RATE` |"));
/// ```
pub fn word_list() -> String {
    let mut text = String::new();
    for Group { title, words } in table::GROUPS {
        let _ = writeln!(text, "\n### {title}\n\n| word | meaning |\n|---|---|");
        for word in *words {
            let name = format!("{} {}", word.name, word.value.placeholder());
            let synonym = word.synonym.map(|other| format!(", `{other}`")).unwrap_or_default();
            let default = if word.default { " (default)" } else { "" };
            let _ = writeln!(text, "| `{}`{synonym} | {}{default} |", name.trim_end(), word.help);
        }
    }
    let _ = writeln!(text, "\n{}", table::UNITS);
    text
}

/// The script that completes the command in `shell`: options and subcommands of `command`, and `tc`'s verbs with the
/// words of CAKE.
pub fn completions(command: &Command, shell: Shell) -> String {
    let mut command = with_verbs(command.clone());
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut command, NAME, &mut bytes);
    let script = String::from_utf8(bytes).expect("completions are text");
    if shell == Shell::Fish { script + &fish_words() } else { script }
}

/// The words for fish, for which `clap_complete` writes options and subcommands only.
fn fish_words() -> String {
    let line = |word: &Word| {
        let help = word.help.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "complete -c {NAME} -n \"__fish_seen_subcommand_from add replace change\" -f -a {} -d '{help}'\n",
            word.name
        )
    };
    table::words().map(line).collect()
}

/// Completions know clap's definitions only, and `tc`'s part of the command line is not among them.
fn with_verbs(command: Command) -> Command {
    let objects = [
        (
            "qdisc",
            "Queueing disciplines of ports",
            &["show", "add", "replace", "change", "del"][..],
        ),
        ("class", "Queues of a discipline", &["show"]),
    ];
    objects.into_iter().fold(command, |command, (object, about, verbs)| {
        if command.find_subcommand(object).is_some() {
            return command;
        }
        let verbs = verbs.iter().map(|&verb| Command::new(verb).arg(rest()));
        command.subcommand(Command::new(object).about(about).subcommands(verbs))
    })
}

/// What follows a verb.
fn rest() -> Arg {
    let names = table::words().flat_map(|word| [Some(word.name), word.synonym]).flatten();
    let words = ["dev", "root", "handle", "cake"].into_iter().chain(names);
    Arg::new("words")
        .action(ArgAction::Append)
        .num_args(0..)
        .value_parser(PossibleValuesParser::new(words))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    fn command() -> Command {
        let run = Command::new("run").about("Shapes").arg(Arg::new("lan").required(true));
        Command::new(NAME)
            .about("Keeps queues short")
            .subcommand(run.after_help("Examples:\n  .x\n\nMore"))
    }

    #[test]
    fn the_page_has_every_word_with_its_value() {
        let page = page(&command(), &[]);
        for word in table::words() {
            let name = format!("\\fB{}\\fR", word.name.replace('-', "\\-"));
            assert!(page.contains(&name), "{name}");
        }
        assert!(page.contains("\\fBbandwidth\\fR \\fIRATE\\fR"), "{page}");
        assert!(page.contains("\\fBdiffserv4\\fR, \\fBdiffserv\\fR"), "{page}");
    }

    #[test]
    fn the_page_has_what_is_not_in_the_definition_as_it_stands() {
        let page = page(&command(), &[Section { title: "Batch", text: "'tis\n.so" }]);
        assert!(page.contains(".SH BATCH\n.nf\n\\*(Aqtis\n\\&.so\n.fi\n"), "{page}");
        assert_eq!(page.matches(".ds Aq '").count(), 1, "{page}");
        assert!(page.contains(".SH \"ucake run\"\nucake run [OPTIONS] <lan>"), "{page}");
        assert!(page.contains(".SH \"EXAMPLES OF RUN\"\n.nf\n  .x\n.fi\n"), "{page}");
    }

    #[test]
    fn every_shell_gets_every_word() {
        for &shell in Shell::value_variants() {
            let script = completions(&command(), shell);
            for word in table::words() {
                // Elvish and PowerShell complete options and subcommands, not values.
                let knows_values = !matches!(shell, Shell::Elvish | Shell::PowerShell);
                assert!(!knows_values || script.contains(word.name), "{shell}: {}", word.name);
            }
            assert!(script.contains("qdisc"), "{shell}");
        }
    }

    #[test]
    fn a_command_that_defines_a_verb_itself_keeps_it() {
        let own = command().subcommand(Command::new("qdisc").about("ours"));
        let both = with_verbs(own);
        assert_eq!(both.get_subcommands().filter(|sub| sub.get_name() == "qdisc").count(), 1);
    }
}
