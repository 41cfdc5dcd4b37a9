//go:build unix

package main

import (
	"os"
	"syscall"
)

// signalOf returns the number of the signal that has ended a process, 0 if none has.
func signalOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return int(status.Signal())
	}
	return 0
}
