"""Checks rendered manifests: schemas, shapes, policy, and that every variable is a flag; and the images.

    check.py <directory with the services' programs> <rendered.yaml>…
"""

import sys
from pathlib import Path

import yaml

import alerts
import flags
import images
import policy
import schemas

PROBLEMS = [schemas.problems, policy.problems, flags.problems, alerts.problems]


def main(programs: str, *files: str) -> int:
    found = 0
    for problem in images.problems(images.DOCKERFILE.read_text()):
        found += 1
        print(f"images: {problem}", file=sys.stderr)
    for path in map(Path, files):
        objects = [one for one in yaml.safe_load_all(path.read_text()) if one]
        for check in PROBLEMS:
            for problem in check(path.stem, objects, Path(programs)):
                found += 1
                print(f"{path.stem}: {problem}", file=sys.stderr)
        print(f"manifests: {path.stem} has {len(objects)} objects")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
