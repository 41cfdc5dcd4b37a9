#!/usr/bin/env bash
# Counts the lines of Go that a server needs, by hand and generated, without tests:
#
#	examples/lines.sh examples/wardle examples/clock DIR_OF_SAMPLE_APISERVER
set -euo pipefail
printf '%-50s %8s %10s\n' folder 'by hand' generated
for folder in "$@"; do
	hand=0 generated=0
	while IFS= read -r -d '' file; do
		lines=$(wc -l <"$file")
		if head -n 40 "$file" | grep -q '^// Code generated .* DO NOT EDIT'; then
			generated=$((generated + lines))
		else
			hand=$((hand + lines))
		fi
	done < <(find "$folder" -name '*.go' ! -name '*_test.go' -print0)
	printf '%-50s %8d %10d\n' "${folder##*/pkg/mod/}" "$hand" "$generated"
done
