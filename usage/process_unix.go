//go:build unix

package usage

import (
	"syscall"
	"time"
)

// processTime is the CPU time that the process has used, of itself and of the kernel.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
