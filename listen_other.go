//go:build !unix

package kelson

import (
	"errors"
	"syscall"
)

// control returns an error for socket options that this system does not have.
func (v *Serving) control(string, string, syscall.RawConn) error {
	if v.PermitPortSharing || v.PermitAddressSharing {
		return errors.New("ports and addresses cannot be shared on this system")
	}
	return nil
}
