//go:build !linux

package main

// smallPages is for Linux.
func smallPages() {}
