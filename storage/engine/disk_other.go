//go:build !unix

package engine

// isReadOnlyDisk tells the error of a disk that is mounted read-only.
func isReadOnlyDisk(error) bool { return false }
