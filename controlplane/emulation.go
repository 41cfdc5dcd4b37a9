package controlplane

import (
	"strconv"

	"k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson"
)

// version returns what the server says that it is: it serves what the emulated version
// had; what is stored is as this version has it.
func (c *Config) version() version.Info {
	info, v := kelson.Version(), c.Gates.Version()
	info.EmulationMajor, info.EmulationMinor = itoa(v.Emulated.Major()), itoa(v.Emulated.Minor())
	info.MinCompatibilityMajor, info.MinCompatibilityMinor = itoa(v.MinCompatibility.Major()), itoa(v.MinCompatibility.Minor())
	return info
}

func itoa(n uint) string { return strconv.FormatUint(uint64(n), 10) }
