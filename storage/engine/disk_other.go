//go:build !unix

package engine

// isReadOnlyDisk reports whether err is that of a file system mounted read-only; not
// known here.
func isReadOnlyDisk(error) bool { return false }
