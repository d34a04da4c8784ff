use expect_test::expect;

use super::*;

/// What each line may destroy, and whether it is known to only read.
#[test]
fn what_a_command_does_is_told_by_its_parts() {
    let mut lines = String::new();
    for line in [
        "ls -la",
        "cat a | grep b | wc -l",
        "find . -name '*.rs' -type f",
        "find . -delete",
        "find . -fprint x",
        "find \"./$x\"",
        "git status",
        "git log --oneline $x",
        "git log -- $x",
        "git log -n\"$x\"",
        "git diff --output=x",
        "git branch",
        "git push",
        "git push --force-with-lease",
        "git push -f",
        "git push origin +main",
        "git push origin :main",
        "git reset HEAD~1",
        "git reset --hard",
        "git -C a clean -fdx",
        "git checkout main",
        "git checkout -- a",
        "git stash",
        "git stash drop",
        "git config --get user.name",
        "git config a.b c",
        "rm x",
        "rm -rf x",
        "dd if=a of=b",
        "mkfs.ext4 a",
        "chmod +x a",
        "chmod -R 777 .",
        "echo a > b",
        "echo a >> b",
        "echo a > /dev/null",
        "a | tee b",
        "a | tee -a b",
        "cp a b",
        "cp -n a b",
        "mv a b",
        "sed -n 5p a",
        "sed -i s/a/b/ c",
        "curl a | sh",
        "sh a.sh",
        "bash -c 'ls'",
        "bash -c 'rm x'",
        "apt-get install a",
        "npm test",
        "npm install",
        "cargo test install",
        "pip install a",
        "python3 -m pytest",
        "python3 -c 'x'",
        "python3 -",
        "kill 1",
        "sudo ls",
        "timeout 5 ls",
        "xargs cat",
        "sort a",
        "sort -o a b",
        "sort -r\"$x\" a",
        "rg -n\"$x\" a",
        "date",
        "date -s 0",
        "uniq a",
        "uniq a b",
        "uniq -c$x",
        "make",
        "touch a",
        "./ls",
        "A=1 ls",
        "PATH=. ls",
        "$x",
        "cd a && pwd",
        "test -f a && echo b",
        "for f in a b; do cat $f; done",
        "# nothing",
    ] {
        let parts = Line::split(line).parts;
        let danger = parts.iter().find_map(danger::of).unwrap_or_else(|| "nothing".into());
        let reads = if parts.iter().all(reads::only) { ", only reads" } else { "" };
        lines += &format!("{line}: {danger}{reads}\n");
    }
    expect![[r#"
        ls -la: nothing, only reads
        cat a | grep b | wc -l: nothing, only reads
        find . -name '*.rs' -type f: nothing, only reads
        find . -delete: "find . -delete" removes or overwrites files
        find . -fprint x: "find . -fprint x" removes or overwrites files
        find "./$x": nothing, only reads
        git status: nothing, only reads
        git log --oneline $x: it cannot be told what "git log --oneline $x" does: an option may be filled in that makes git run anything
        git log -- $x: nothing
        git log -n"$x": nothing, only reads
        git diff --output=x: it cannot be told what "git diff --output=x" does: git may write a file of any name
        git branch: nothing
        git push: nothing
        git push --force-with-lease: "git push --force-with-lease" overwrites published history
        git push -f: "git push -f" overwrites published history
        git push origin +main: "git push origin +main" overwrites published history
        git push origin :main: "git push origin :main" overwrites published history
        git reset HEAD~1: nothing
        git reset --hard: "git reset --hard" discards changes
        git -C a clean -fdx: "git -C a clean -fdx" removes files
        git checkout main: nothing
        git checkout -- a: "git checkout -- a" discards changes
        git stash: nothing
        git stash drop: "git stash drop" discards changes
        git config --get user.name: nothing
        git config a.b c: it cannot be told what "git config a.b c" does: git can be told to run anything
        rm x: "rm x" removes files
        rm -rf x: "rm -rf x" removes files
        dd if=a of=b: "dd if=a of=b" overwrites files
        mkfs.ext4 a: "mkfs.ext4 a" erases a disk
        chmod +x a: nothing
        chmod -R 777 .: "chmod -R 777 ." changes whole folders
        echo a > b: "> b" overwrites a file
        echo a >> b: nothing
        echo a > /dev/null: nothing, only reads
        a | tee b: "tee b" overwrites files
        a | tee -a b: nothing
        cp a b: "cp a b" may overwrite files
        cp -n a b: nothing
        mv a b: "mv a b" may overwrite files
        sed -n 5p a: nothing
        sed -i s/a/b/ c: "sed -i s/a/b/ c" overwrites files
        curl a | sh: it cannot be told what "sh" does: it runs whatever it is given to read
        sh a.sh: "sh a.sh" runs a script that nobody has looked at
        bash -c 'ls': nothing, only reads
        bash -c 'rm x': "rm x" removes files
        apt-get install a: "apt-get install a" changes what is installed
        npm test: nothing
        npm install: "npm install" changes what is installed or published
        cargo test install: "cargo test install" changes what is installed or published
        pip install a: "pip install a" changes what is installed or published
        python3 -m pytest: nothing
        python3 -c 'x': "python3 -c x" runs code that nobody has looked at
        python3 -: "python3 -" runs code that nobody has looked at
        kill 1: "kill 1" stops processes
        sudo ls: "sudo ls" acts as another user
        timeout 5 ls: nothing, only reads
        xargs cat: nothing, only reads
        sort a: nothing, only reads
        sort -o a b: "sort -o a b" overwrites files
        sort -r"$x" a: "sort -r$x a" overwrites files
        rg -n"$x" a: nothing, only reads
        date: nothing, only reads
        date -s 0: nothing
        uniq a: nothing
        uniq a b: nothing
        uniq -c$x: nothing
        make: nothing
        touch a: nothing
        ./ls: nothing
        A=1 ls: nothing, only reads
        PATH=. ls: it cannot be told what "PATH=." does: this variable changes which programs run
        $x: it cannot be told what "$x" does: its name is filled in by the shell
        cd a && pwd: nothing, only reads
        test -f a && echo b: nothing, only reads
        for f in a b; do cat $f; done: nothing, only reads
        # nothing: nothing
    "#]].assert_eq(&lines);
}
