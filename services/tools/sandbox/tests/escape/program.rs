//! The programs that attempts are: shell scripts, and Perl where a system call is to be made by
//! hand, because Perl can and is everywhere.

use nix::libc::c_long;
use sandbox::Program;

/// Succeeds if the script does.
pub fn shell(script: impl AsRef<str>) -> Program {
    Program::bash(&format!("set -e\n{}", script.as_ref()))
}

/// Succeeds if the script lives to its end. `call` makes a system call and dies if that fails;
/// `reached` does not mind an error of the kernel's own, but a refusal to listen: what a filter
/// forbids is answered with EPERM or ENOSYS before the kernel looks at it.
pub fn perl(script: impl AsRef<str>) -> Program {
    let prelude = r#"
        use strict;
        sub call {
            my ($number, @arguments) = @_;
            my $result = syscall($number, @arguments);
            die "$number: $!" if $result == -1;
            $result
        }
        sub reached {
            my ($number, @arguments) = @_;
            my $result = syscall($number, @arguments);
            die "$number: $!" if $result == -1 && ($! == 1 || $! == 38);
        }
        sub address { unpack 'J', pack 'p', $_[0] }
    "#;
    Program::new("perl", &["-e", &format!("{prelude}\n{}", script.as_ref())])
}

/// One system call with these arguments, in Perl's words.
pub fn call(number: c_long, arguments: &str) -> Program {
    perl(format!("call({number}, {arguments})"))
}

/// One system call that the kernel is seen to look at.
pub fn reached(number: c_long, arguments: &str) -> Program {
    perl(format!("reached({number}, {arguments})"))
}
