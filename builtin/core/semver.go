package core

import "regexp"

// IsSemver reports whether a text is a version as semver.org has it, in three
// numbers with an optional pre-release and build.
func IsSemver(text string) bool {
	const number, pre, build = `(0|[1-9]\d*)`, `(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)`, `[0-9a-zA-Z-]+`
	return regexp.MustCompile(`^` + number + `\.` + number + `\.` + number + `(-` + pre + `(\.` + pre + `)*)?(\+` + build + `(\.` + build + `)*)?$`).MatchString(text)
}
