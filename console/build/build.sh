#!/usr/bin/env bash
# Builds ../web/vendor from the packages that package.json names, with their licences.
# Needs npm; 'go build' does not, it takes what is there.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp package.json ./*.js "$work"
(cd "$work" && npm install --no-audit --no-fund --ignore-scripts >/dev/null)
out=$PWD/../web/vendor
rm -rf "$out" && mkdir -p "$out"
for entry in preact chart editor; do
	(cd "$work" && node_modules/.bin/esbuild "$entry.js" --bundle --minify --format=esm --target=es2022 --legal-comments=none --outfile="$out/$entry.js")
done
cp "$work/node_modules/uplot/dist/uPlot.min.css" "$out/chart.css"
# One file of licences, package by package.
(
	cd "$work/node_modules"
	for package in preact htm uplot codemirror @codemirror/* @lezer/* @marijn/* style-mod crelt w3c-keyname; do
		[ -e "$package/package.json" ] || continue
		printf '%s %s\n\n' "$package" "$(node -p "require('./$package/package.json').version")"
		cat "$package"/LICENSE* "$package"/LICENCE* 2>/dev/null || node -p "'License: ' + require('./$package/package.json').license"
		printf '\n\n'
	done
) >"$out/LICENSES.txt"
