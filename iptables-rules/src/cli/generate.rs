//! Completion scripts and the manual page, made from the parser itself.
//!
//! Packagers ask for them by a hidden flag, since every word that is not a flag is ignored.

use std::io;

use clap::{Command, ValueEnum};
use clap_complete::aot::{Shell, generate};

/// What can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Document {
    /// For bash.
    CompletionBash,
    /// For zsh.
    CompletionZsh,
    /// For fish.
    CompletionFish,
    /// Manual page, section 1.
    Man,
}

/// Writes a document about `command`.
///
/// # Errors
/// When `output` does not take it.
pub fn write(document: Document, mut command: Command, output: &mut dyn io::Write) -> io::Result<()> {
    let shell = match document {
        Document::CompletionBash => Shell::Bash,
        Document::CompletionZsh => Shell::Zsh,
        Document::CompletionFish => Shell::Fish,
        Document::Man => return clap_mangen::Man::new(command).render(output),
    };
    // Made in memory first: the generator panics when it cannot write.
    let mut text = Vec::new();
    let name = command.get_name().to_owned();
    generate(shell, &mut command, name, &mut text);
    output.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::command;
    use crate::cli::flags::FLAGS;

    fn text(document: Document) -> String {
        let mut bytes = Vec::new();
        write(document, command(), &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn every_flag_is_in_the_completions_and_in_the_manual() {
        for document in Document::value_variants() {
            let text = text(*document).replace("\\-", "-");
            for flag in FLAGS {
                assert!(text.contains(flag.name), "{document:?} lacks {}", flag.name);
            }
        }
    }
}
