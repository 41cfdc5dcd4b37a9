package controlplane

import (
	"github.com/apikeel/kelson/managedfields"
)

// owners keeps track of who owns which fields.
type owners = managedfields.Owners
