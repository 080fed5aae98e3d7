# Installs the newest release of Modegate for this user. Never run.
#
#   irm https://github.com/modegate/modegate/releases/latest/download/install.ps1 | iex
#
# $env:MODEGATE_VERSION selects a version, such as 0.1.0; $env:MODEGATE_INSTALL_DIR the folder.
$ErrorActionPreference = 'Stop'

$repository = 'https://github.com/modegate/modegate'
$target = 'x86_64-pc-windows-msvc'
$folder = if ($env:MODEGATE_INSTALL_DIR) { $env:MODEGATE_INSTALL_DIR } else { "$env:LOCALAPPDATA\Programs\Modegate" }
$base = "$repository/releases/latest/download"
if ($env:MODEGATE_VERSION) { $base = "$repository/releases/download/v$env:MODEGATE_VERSION" }

$temporary = Join-Path ([IO.Path]::GetTempPath()) ([Guid]::NewGuid())
New-Item -ItemType Directory $temporary | Out-Null
try {
    Invoke-WebRequest -UseBasicParsing "$base/SHA256SUMS" -OutFile "$temporary\sums"
    $line = Get-Content "$temporary\sums" | Where-Object { $_ -match "  modegate-.*-$target\.zip$" }
    if (-not $line) { throw "the release has no binary for $target" }
    $expected, $archive = $line -split '  '
    Invoke-WebRequest -UseBasicParsing "$base/$archive" -OutFile "$temporary\$archive"
    $sum = (Get-FileHash -Algorithm SHA256 "$temporary\$archive").Hash
    if ($sum -ne $expected) { throw "$archive does not have the checksum of the release" }
    Expand-Archive "$temporary\$archive" $temporary
    New-Item -ItemType Directory -Force $folder | Out-Null
    Copy-Item -Force "$temporary\$($archive -replace '\.zip$', '')\modegate.exe" $folder
    & "$folder\modegate.exe" --version
    Write-Output "installed: $folder\modegate.exe"
    if (($env:Path -split ';') -notcontains $folder) { Write-Output "add $folder to PATH" }
} finally {
    Remove-Item -Recurse -Force $temporary
}
