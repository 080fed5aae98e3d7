#!/usr/bin/env python3
"""Makes the packages of a release from its binaries.

    packaging/package.py BINARIES OUT

BINARIES has a folder for each target, such as x86_64-unknown-linux-musl/modegate; the targets that are missing are
left out. OUT gets, for the version in Cargo.toml:

    modegate-VERSION-TARGET.tar.gz or .zip    the archives of the release
    SHA256SUMS                                their checksums
    npm/*.tgz                                 `modegate` and one package for each platform
    pypi/*.whl                                one wheel for each platform
    modegate.rb                               the Homebrew formula
    agent.json                                the entry of the ACP registry

Files have the time $SOURCE_DATE_EPOCH, so equal binaries make equal packages. Only Python's standard library is
needed.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))  # 1980-01-01, the first day of zip files
DOCUMENTS = ["LICENSE", "README.md", "CHANGELOG.md"]


@dataclass(frozen=True)
class Target:
    """A platform, and its names in npm, PyPI and the ACP registry."""

    triple: str
    npm: str
    npm_os: str
    npm_cpu: str
    wheel: str
    registry: str

    @property
    def binary(self):
        return "modegate.exe" if self.npm_os == "win32" else "modegate"


# The wheels of Linux serve both C libraries, because the binary is static.
LINUX_WHEEL = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"
TARGETS = [
    Target("x86_64-unknown-linux-musl", "linux-x64", "linux", "x64", LINUX_WHEEL.format("x86_64"), "linux-x86_64"),
    Target("aarch64-unknown-linux-musl", "linux-arm64", "linux", "arm64", LINUX_WHEEL.format("aarch64"), "linux-aarch64"),
    Target("aarch64-apple-darwin", "darwin-arm64", "darwin", "arm64", "macosx_11_0_arm64", "darwin-aarch64"),
    Target("x86_64-apple-darwin", "darwin-x64", "darwin", "x64", "macosx_10_12_x86_64", "darwin-x86_64"),
    Target("x86_64-pc-windows-msvc", "win32-x64", "win32", "x64", "win_amd64", "windows-x86_64"),
]


def manifest():
    """The fields of Cargo.toml that packages repeat."""
    text = (ROOT / "Cargo.toml").read_text()
    field = lambda name: re.search(rf'^{name} = "(.*)"$', text, re.M)[1]
    return {name: field(name) for name in ["version", "description", "license", "repository"]}


def tar_gz(entries):
    """Entries are (name, content, is_executable)."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, is_executable in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(content), EPOCH, 0o755 if is_executable else 0o644
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(data.getvalue(), mtime=EPOCH)


def zipped(entries):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, is_executable in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if is_executable else 0o100644) << 16
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            archive.writestr(info, content)
    return data.getvalue()


def archive(about, target, binary):
    name = f"modegate-{about['version']}-{target.triple}"
    entries = [(f"{name}/{target.binary}", binary, True)]
    entries += [(f"{name}/{document}", (ROOT / document).read_bytes(), False) for document in DOCUMENTS]
    return (f"{name}.zip", zipped(entries)) if target.npm_os == "win32" else (f"{name}.tar.gz", tar_gz(entries))


def npm_package(about, name, further, files):
    package = {
        "name": name,
        "version": about["version"],
        "description": about["description"],
        "license": about["license"],
        "repository": {"type": "git", "url": f"git+{about['repository']}.git"},
        **further,
    }
    entries = [("package/package.json", (json.dumps(package, indent=2) + "\n").encode(), False)]
    entries += [(f"package/{path}", content, is_executable) for path, content, is_executable in files]
    return f"{name.replace('@', '').replace('/', '-')}-{about['version']}.tgz", tar_gz(entries)


def npm_packages(about, binaries):
    license_file = ("LICENSE", (ROOT / "LICENSE").read_bytes(), False)
    for target, binary in binaries:
        limits = {"os": [target.npm_os], "cpu": [target.npm_cpu], "preferUnplugged": True}
        files = [(f"bin/{target.binary}", binary, True), license_file]
        yield npm_package(about, f"@modegate/{target.npm}", limits, files)
    optional = {f"@modegate/{target.npm}": about["version"] for target, _ in binaries}
    main = {"bin": {"modegate": "bin/modegate.js"}, "engines": {"node": ">=18"}, "optionalDependencies": optional}
    files = [("bin/modegate.js", (HERE / "npm/modegate.js").read_bytes(), True), license_file]
    files.append(("README.md", (ROOT / "README.md").read_bytes(), False))
    yield npm_package(about, "modegate", main, files)


def wheel(about, target, binary):
    version = about["version"]
    info = f"modegate-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        "Name: modegate",
        f"Version: {version}",
        f"Summary: {about['description']}",
        f"License-Expression: {about['license']}",
        "License-File: LICENSE",
        f"Project-URL: Repository, {about['repository']}",
        "Requires-Python: >=3.8",
        "Description-Content-Type: text/markdown",
        "",
        (ROOT / "README.md").read_text(),
    ]
    tags = [f"Tag: py3-none-{tag}" for tag in target.wheel.split(".")]
    kind = ["Wheel-Version: 1.0", "Generator: modegate", "Root-Is-Purelib: false", *tags, ""]
    entries = [
        (f"modegate-{version}.data/scripts/{target.binary}", binary, True),
        (f"{info}/METADATA", "\n".join(metadata).encode(), False),
        (f"{info}/WHEEL", "\n".join(kind).encode(), False),
        (f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes(), False),
    ]
    record = f"{info}/RECORD"
    digest = lambda content: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    rows = [f"{name},sha256={digest(content)},{len(content)}" for name, content, _ in entries] + [f"{record},,", ""]
    entries.append((record, "\n".join(rows).encode(), False))
    return f"modegate-{version}-py3-none-{target.wheel}.whl", zipped(entries)


def formula(about, sums):
    url = lambda triple: f"{about['repository']}/releases/download/v{about['version']}/modegate-{about['version']}-{triple}.tar.gz"

    def block(system, cpus):
        lines = [f"  on_{system} do"]
        for cpu, triple in cpus:
            if triple in sums:
                lines += [f"    on_{cpu} do", f'      url "{url(triple)}"', f'      sha256 "{sums[triple]}"', "    end"]
        return [*lines, "  end", ""] if len(lines) > 1 else []

    # Homebrew wants no article in front.
    description = about["description"].removeprefix("A ")
    lines = [
        "class Modegate < Formula",
        f'  desc "{description[0].upper()}{description[1:]}"',
        f'  homepage "{about["repository"]}"',
        f'  version "{about["version"]}"',
        f'  license "{about["license"]}"',
        "",
        *block("macos", [("arm", "aarch64-apple-darwin"), ("intel", "x86_64-apple-darwin")]),
        *block("linux", [("arm", "aarch64-unknown-linux-musl"), ("intel", "x86_64-unknown-linux-musl")]),
        "  def install",
        '    bin.install "modegate"',
        "  end",
        "",
        "  test do",
        '    assert_match version.to_s, shell_output("#{bin}/modegate --version")',
        "  end",
        "end",
        "",
    ]
    return "\n".join(lines)


def registry_entry(about, names):
    """packaging/registry/modegate/agent.json with this version and the archives that were made."""
    entry = json.loads((HERE / "registry/modegate/agent.json").read_text())
    entry["version"] = about["version"]
    base = f"{about['repository']}/releases/download/v{about['version']}"
    entry["distribution"]["binary"] = {
        target.registry: {
            "archive": f"{base}/{name}",
            "cmd": f"./{name.removesuffix('.zip').removesuffix('.tar.gz')}/{target.binary}",
        }
        for target, name in names.items()
    }
    entry["distribution"]["npx"]["package"] = f"modegate@{about['version']}"
    entry["distribution"]["uvx"]["package"] = f"modegate=={about['version']}"
    return json.dumps(entry, indent=2) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, out = map(Path, sys.argv[1:])
    about = manifest()
    binaries = [(target, source / target.triple / target.binary) for target in TARGETS]
    binaries = [(target, path.read_bytes()) for target, path in binaries if path.is_file()]
    if not binaries:
        sys.exit(f"{source}: no binary of {', '.join(target.triple for target in TARGETS)}")
    for folder in ["npm", "pypi"]:
        (out / folder).mkdir(parents=True, exist_ok=True)
    names, sums = {}, {}
    for target, binary in binaries:
        name, data = archive(about, target, binary)
        (out / name).write_bytes(data)
        names[target], sums[target.triple] = name, hashlib.sha256(data).hexdigest()
        name, data = wheel(about, target, binary)
        (out / "pypi" / name).write_bytes(data)
    for name, data in npm_packages(about, binaries):
        (out / "npm" / name).write_bytes(data)
    lines = [f"{sums[target.triple]}  {name}\n" for target, name in names.items()]
    (out / "SHA256SUMS").write_text("".join(lines))
    (out / "modegate.rb").write_text(formula(about, sums))
    (out / "agent.json").write_text(registry_entry(about, names))


if __name__ == "__main__":
    main()
