//go:build unix

package engine

import (
	"errors"
	"syscall"
)

// isReadOnlyDisk tells the error of a disk that is mounted read-only.
func isReadOnlyDisk(err error) bool { return errors.Is(err, syscall.EROFS) }
