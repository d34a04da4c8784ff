"""What has to be true of the images, read off their Dockerfile: whoever checks manifests need not be able
to build images.
"""

import re
import tomllib
from pathlib import Path

import objects as look

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"

# What compilers bring is not in an image that is named for its release.
RELEASE = re.compile(r"^(scratch|debian:[a-z]+-slim|rust:\$\{RUST\}-[a-z]+)$")


def problems(text):
    stages = stages_of(text)
    floor = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    if f"ARG RUST={floor}\n" not in text:
        yield f"the Dockerfile does not build with Rust {floor}, the least that Cargo.toml allows"
    for origin in (stage["from"] for stage in stages.values()):
        if origin not in stages and not RELEASE.match(origin):
            yield f"the Dockerfile begins with {origin}, which names no release"
    yield from of_programs(text, stages)
    for service in look.SERVICES:
        if service not in stages:
            yield f"the Dockerfile has no stage {service}"
            continue
        lines = [*stages.get(stages[service]["from"], {}).get("lines", []), *stages[service]["lines"]]
        users = [line.split()[1] for line in lines if line.startswith("USER ")]
        if not users or not re.match(r"[1-9]\d*:[1-9]\d*$", users[-1]):
            yield f"the image of {service} is not of a user with a number"
        if lines[-1] != f'ENTRYPOINT ["{service}"]':
            yield f"the image of {service} does not run {service}"


def of_programs(text, stages):
    """Programs that exist are built, installed and copied, and folders that exist are copied."""
    manifests = [*ROOT.glob("services/*/Cargo.toml"), ROOT / "services/tools/sandbox/Cargo.toml"]
    crates = {tomllib.loads(one.read_text())["package"]["name"]: one.parent for one in manifests}
    builds = re.findall(r"cargo build[^&]*", text)
    built = re.findall(r" -p (\S+)", " ".join(builds))
    for unknown in set(built) - crates.keys():
        yield f"the Dockerfile builds {unknown}, and there is no such crate"
    programs = set()
    for crate in set(built) & crates.keys():
        manifest = tomllib.loads((crates[crate] / "Cargo.toml").read_text())
        programs |= {one["name"] for one in manifest.get("bin", [])} or {crate}
        programs |= {one.stem for one in (crates[crate] / "src" / "bin").glob("*.rs")}
    installed = set(re.findall(r"target/dist/(\S+)", text))
    for unknown in installed - programs:
        yield f"the Dockerfile installs {unknown}, which it does not build"
    for stage in stages.values():
        for line in (line for line in stage["lines"] if line.startswith("COPY ")):
            words = line.split()
            of = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
            sources = [word for word in words[1:-1] if not word.startswith("--")]
            for source in sources:
                if of == ["build"] and source.removeprefix("/out/") not in installed:
                    yield f"the Dockerfile copies {source}, which nobody installs"
                if not of and not (ROOT / source).exists():
                    yield f"the Dockerfile copies {source}, which is not there"
            for unknown in set(of) - stages.keys():
                yield f"the Dockerfile copies from {unknown}, and there is no such stage"


def stages_of(text):
    """The stages by name, each with what it begins with and its instructions, a line each."""
    stages, current = {}, {"lines": []}
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        begun = re.match(r"FROM (\S+)(?: AS (\S+))?$", line)
        if begun and begun[2]:
            current = stages[begun[2]] = {"from": begun[1], "lines": []}
        elif line and not begun and not line.startswith("#"):
            current["lines"].append(line)
    return stages
