package controlplane

import (
	"strconv"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin"
)

// Emulation has the server behave as one of an earlier version: what came later is
// not served. What is stored, and the rules for objects, are those of this version.
type Emulation struct {
	builtin.Emulation
	// Compatible is the oldest version of servers that use the same data; nil is the
	// one before.
	Compatible *utilversion.Version
}

// version returns what the server says that it is.
func (e Emulation) version() apiversion.Info {
	info := kelson.Version()
	if v := e.Version; v != nil {
		info.EmulationMajor, info.EmulationMinor = itoa(v.Major()), itoa(v.Minor())
	}
	if v := e.Compatible; v != nil {
		info.MinCompatibilityMajor, info.MinCompatibilityMinor = itoa(v.Major()), itoa(v.Minor())
	}
	return info
}

func itoa(n uint) string { return strconv.FormatUint(uint64(n), 10) }
