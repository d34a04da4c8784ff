mod bash;
mod effects;
mod properties;

use expect_test::expect;

use super::*;

/// The parts of a line, with `?` where it is unclear what they do.
fn shown(line: &str) -> String {
    let mark = |part: &Part| match (part.unclear, part.kind) {
        (Some(_), Kind::Unknown) => "?? ",
        (Some(_), _) => "? ",
        (None, Kind::Wrapper) => "~ ",
        (None, _) => "",
    };
    let show = |part: &Part| format!("{}{}", mark(part), part.text());
    Line::split(line).parts.iter().map(show).collect::<Vec<_>>().join(" ¦ ")
}

fn table(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{line:?}\n    {}\n", shown(line))).collect()
}

#[test]
fn lines_are_split_as_a_shell_would() {
    expect![[r##"
        "ls"
            ls
        " ls   -l\t'a b' \"c\" d\\ e '' "
            ls -l 'a b' c 'd e' ''
        "a; b & c && d || e | f |& g\nh"
            a ¦ b ¦ c ¦ d ¦ e ¦ f ¦ g ¦ h
        "# only a comment"
            '# only a comment'
        "ls # and a comment; rm x"
            ls
        "ls a#b"
            ls 'a#b'
        "(a; (b)); { c; }"
            a ¦ b ¦ c
        "! a && time -p b"
            a ¦ b
        "if a; then b; elif c; then d; else e; fi > out"
            a ¦ b ¦ c ¦ d ¦ e ¦ > out
        "for x in 1 $(a) `b`; do c $x; done | d"
            a ¦ b ¦ c $x ¦ d
        "while read -r line; do echo \"$line\"; done < file"
            read -r line ¦ echo $line
        "case $x in (a|b*) c;; d) e ;& *) f; esac; g"
            c ¦ e ¦ f ¦ g
        "f() { a; }; function g { b; }; f"
            a ¦ b ¦ f
        "[[ -f x && $y =~ ^(a|b)$ ]] && a"
            [[ -f x $y =~ ^ a b '$' ]] ¦ a
        "[[ $? -eq 0 ]] || a"
            [[ $? -eq 0 ]] ¦ a
        "echo $(a $(b) \"$(c)\") `d \\`e\\`` <(f) >(g)"
            b ¦ c ¦ a $(b) $(c) ¦ e ¦ d `e` ¦ f ¦ g ¦ echo $(a $(b) "$(c)") `d \`e\`` <(f) >(g)
        "echo \"a `b` ${x:-$(c)} $((1 + (2)))\" ${x%%.*} ${#x} ${x:1:2} $x"
            b ¦ c ¦ echo 'a '`b`' '${x:-$(c)}' '$((1 + (2))) ${x%%.*} ${#x} ${x:1:2} $x
        "A=1 B='x y' C+=(1 $(a)) b D=2"
            a ¦ A=1 ¦ B='x y' ¦ C+=(1 $(a)) ¦ b D=2
        "a > x 2>&1 < y >> z 2>/dev/null &> w >| v <<< \"$(b)\""
            b ¦ > x ¦ >> z ¦ > w ¦ > v ¦ a
        "cat <<A <<-'B' | wc\n$(a) \\$(no) `b`\nA\n\t$(no)\n\tB\nc"
            cat ¦ wc ¦ a ¦ b ¦ c
        "a \\\n  b"
            a b
        "echo HEAD~1 ~/x a=~ {} {a,b} stash@{0} *.rs [a]"
            echo 'HEAD~1' ~/x a=~ {} {'a,b}' stash@{'0}' *.rs [a]
        "echo $'a\\tb' $'\\x72m' $\"hi\" '$x' \\$x $ a$"
            echo 'a	b' $'\x72m' $hi '$x' '$x' '$' 'a$'
    "##]]
    .assert_eq(&table(&[
        "ls",
        " ls   -l\t'a b' \"c\" d\\ e '' ",
        "a; b & c && d || e | f |& g\nh",
        "# only a comment",
        "ls # and a comment; rm x",
        "ls a#b",
        "(a; (b)); { c; }",
        "! a && time -p b",
        "if a; then b; elif c; then d; else e; fi > out",
        "for x in 1 $(a) `b`; do c $x; done | d",
        "while read -r line; do echo \"$line\"; done < file",
        "case $x in (a|b*) c;; d) e ;& *) f; esac; g",
        "f() { a; }; function g { b; }; f",
        "[[ -f x && $y =~ ^(a|b)$ ]] && a",
        "[[ $? -eq 0 ]] || a",
        "echo $(a $(b) \"$(c)\") `d \\`e\\`` <(f) >(g)",
        "echo \"a `b` ${x:-$(c)} $((1 + (2)))\" ${x%%.*} ${#x} ${x:1:2} $x",
        "A=1 B='x y' C+=(1 $(a)) b D=2",
        "a > x 2>&1 < y >> z 2>/dev/null &> w >| v <<< \"$(b)\"",
        "cat <<A <<-'B' | wc\n$(a) \\$(no) `b`\nA\n\t$(no)\n\tB\nc",
        "a \\\n  b",
        "echo HEAD~1 ~/x a=~ {} {a,b} stash@{0} *.rs [a]",
        "echo $'a\\tb' $'\\x72m' $\"hi\" '$x' \\$x $ a$",
    ]));
}

#[test]
fn what_is_wrapped_is_a_part_too() {
    expect![[r#"
        "timeout -k 5 10s nice -n 3 nohup env -u A B=1 rm x"
            ~ timeout -k 5 10s nice -n 3 nohup env -u A B=1 rm x ¦ ~ nice -n 3 nohup env -u A B=1 rm x ¦ ~ nohup env -u A B=1 rm x ¦ ~ env -u A B=1 rm x ¦ B=1 ¦ rm x
        "bash -c 'a; b' && sh -ec \"c\" && bash x.sh && bash -c \"$x\" && bash"
            ~ bash -c 'a; b' ¦ a ¦ b ¦ ~ sh -ec c ¦ c ¦ bash x.sh ¦ ? bash -c $x ¦ ? bash
        "eval a 'b; c' && eval $x"
            ~ eval a 'b; c' ¦ a b ¦ c ¦ ? eval $x
        "sudo -u root rm x"
            sudo -u root rm x ¦ rm x
        "command -v rm; command rm x; builtin cd x; exec rm x"
            command -v rm ¦ ~ command rm x ¦ rm x ¦ ~ builtin cd x ¦ cd x ¦ exec rm x ¦ rm x
        "a | xargs -0 -n 1 rm -f; a | xargs -I {} mv {} b; a | xargs -I{} b"
            a ¦ ~ xargs -0 -n 1 rm -f ¦ rm -f … ¦ a ¦ ~ xargs -I {} mv {} b ¦ mv {} b ¦ a ¦ ? xargs -I{} b
        "find . -name '*.rs' -exec rm {} + -exec a {} b ';'"
            find . -name '*.rs' -exec rm {} + -exec a {} b ';' ¦ rm {} ¦ a {} b
        "find $x -name y; find \"./$x\""
            ? find $x -name y ¦ find ./$x
        "env -S 'rm x'; env --what rm; env PATH=. a; env \"$x\" a"
            ? env -S 'rm x' ¦ ? env --what rm ¦ ~ env PATH=. a ¦ ? PATH=. ¦ a ¦ ? env $x a
        "trap 'rm x' EXIT; trap - EXIT; trap"
            trap 'rm x' EXIT ¦ rm x ¦ trap - EXIT ¦ trap
        "busybox rm x; watch -n 1 'rm x; ls'"
            ~ busybox rm x ¦ rm x ¦ ~ watch -n 1 'rm x; ls' ¦ rm x ¦ ls
        "git -c a.b=c log; git bisect run rm x; git submodule foreach --recursive 'rm x'"
            ? git -c a.b=c log ¦ git bisect run rm x ¦ rm x ¦ git submodule foreach --recursive 'rm x' ¦ rm x
        "git -C a --no-pager push; git log -- $x; git log $x; git grep -O a; git log --outp=x"
            git -C a --no-pager push ¦ git log -- $x ¦ ? git log $x ¦ ? git grep -O a ¦ ? git log --outp=x
        "export A=1; export PATH=x; PATH=.; read -r PATH; printf -v PATH x; unset a"
            export A=1 ¦ ? export PATH=x ¦ ? PATH=. ¦ ? read -r PATH ¦ ? printf -v PATH x ¦ unset a
        "awk '{ print $1 }' x; awk 'BEGIN { system(\"rm x\") }'; sed s/a/b/g x; sed '1e rm x'"
            awk '{ print $1 }' x ¦ ? awk 'BEGIN { system("rm x") }' ¦ sed s/a/b/g x ¦ ? sed '1e rm x'
        ". x; source x; alias ls=rm; vim x; ssh a rm x"
            ? . x ¦ ? source x ¦ ? alias ls=rm ¦ ? vim x ¦ ? ssh a rm x
    "#]].assert_eq(&table(&[
        "timeout -k 5 10s nice -n 3 nohup env -u A B=1 rm x",
        "bash -c 'a; b' && sh -ec \"c\" && bash x.sh && bash -c \"$x\" && bash",
        "eval a 'b; c' && eval $x",
        "sudo -u root rm x",
        "command -v rm; command rm x; builtin cd x; exec rm x",
        "a | xargs -0 -n 1 rm -f; a | xargs -I {} mv {} b; a | xargs -I{} b",
        "find . -name '*.rs' -exec rm {} + -exec a {} b ';'",
        "find $x -name y; find \"./$x\"",
        "env -S 'rm x'; env --what rm; env PATH=. a; env \"$x\" a",
        "trap 'rm x' EXIT; trap - EXIT; trap",
        "busybox rm x; watch -n 1 'rm x; ls'",
        "git -c a.b=c log; git bisect run rm x; git submodule foreach --recursive 'rm x'",
        "git -C a --no-pager push; git log -- $x; git log $x; git grep -O a; git log --outp=x",
        "export A=1; export PATH=x; PATH=.; read -r PATH; printf -v PATH x; unset a",
        "awk '{ print $1 }' x; awk 'BEGIN { system(\"rm x\") }'; sed s/a/b/g x; sed '1e rm x'",
        ". x; source x; alias ls=rm; vim x; ssh a rm x",
    ]));
}

#[test]
fn what_is_not_understood_says_why() {
    let mut lines = String::new();
    for line in [
        "echo 'a",
        "echo \"a",
        "echo `a",
        "echo $(a",
        "(a",
        "a)",
        "a \\",
        "a\\\nb",
        "$\\\n(a)",
        "a (b)",
        "((a))",
        "echo $((x))",
        "echo $[1]",
        "echo ${!x}",
        "echo ${x@P}",
        "echo ${x[$(a)]}",
        "echo ${x:=a}",
        "for ((;;)); do a; done",
        "cat <<A\nb",
        "cat <<$A\nb\n$A",
        "cat <<A\nb\\\nA\n",
        "a;;b",
        "esac",
        "case x in a",
        "coproc a",
        "> ",
        "a >",
        "a\0b",
        "[[ a",
        "[[ $x -eq 1 ]]",
        "$x a",
        "r*m x",
        "{rm,x}",
        "r\u{200b}m x",
        "rm\u{a0}x",
        "ls\r",
        "x='a[$(b)]'",
    ] {
        let parts = Line::split(line).parts;
        let why = parts.iter().find_map(|part| part.unclear).unwrap_or("it is clear");
        lines += &format!("{line:?}: {why}\n");
    }
    expect![[r#"
        "echo 'a": a quote has no end
        "echo \"a": a quote has no end
        "echo `a": a backquote has no end
        "echo $(a": something has no end
        "(a": something has no end
        "a)": a parenthesis ends where none began
        "a \\": it ends with a backslash
        "a\\\nb": a line is continued inside of a word
        "$\\\n(a)": a line is continued inside of a word
        "a (b)": a parenthesis is where none belongs
        "((a))": arithmetic may run commands
        "echo $((x))": arithmetic may run commands
        "echo $[1]": arithmetic may run commands
        "echo ${!x}": an unusual expansion may run commands
        "echo ${x@P}": an unusual expansion may run commands
        "echo ${x[$(a)]}": an unusual expansion may run commands
        "echo ${x:=a}": an unusual expansion may run commands
        "for ((;;)); do a; done": arithmetic may run commands
        "cat <<A\nb": a here-document has no end
        "cat <<$A\nb\n$A": the end of a here-document is not understood
        "cat <<A\nb\\\nA\n": a line of a here-document is continued
        "a;;b": a case ends where none began
        "esac": a case ends where none began
        "case x in a": a case is not understood
        "coproc a": coproc is not understood
        "> ": a redirection has no file
        "a >": a redirection has no file
        "a\0b": it has a NUL
        "[[ a": a condition has no end
        "[[ $x -eq 1 ]]": its value may be evaluated as a command
        "$x a": its name is filled in by the shell
        "r*m x": its name is filled in by the shell
        "{rm,x}": its name is filled in by the shell
        "r\u{200b}m x": its name has characters that cannot be seen
        "rm\u{a0}x": its name has characters that cannot be seen
        "ls\r": its name has characters that cannot be seen
        "x='a[$(b)]'": its value may be evaluated as a command
    "#]]
    .assert_eq(&lines);
}
