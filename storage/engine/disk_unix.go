//go:build unix

package engine

import (
	"errors"
	"syscall"
)

// isReadOnlyDisk reports whether err is that of a file system mounted read-only.
func isReadOnlyDisk(err error) bool { return errors.Is(err, syscall.EROFS) }
