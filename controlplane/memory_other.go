//go:build !linux

package controlplane

// forgetProgram has nothing to do where the system maps only what is used.
func forgetProgram(bool) error { return nil }
