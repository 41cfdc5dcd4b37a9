package pgtest

import "syscall"

// killWithParent makes the kernel end a process when the thread that started it ends.
func killWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
