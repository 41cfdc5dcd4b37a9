package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/wire"
	"github.com/spf13/pflag"
)

// encryptionFlags are the flags of how objects are stored: their encoding, and encryption
// at rest.
type encryptionFlags struct {
	encrypt.Options
	mediaType string
}

const (
	encryptionConfigFlag = "encryption-provider-config"
	mediaTypeFlag        = "storage-media-type"
)

func (f *encryptionFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.File, encryptionConfigFlag, "", "`file` with an EncryptionConfiguration: which resources are stored encrypted, and how")
	fs.BoolVar(&f.Reload, encryptionConfigFlag+"-automatic-reload", true, "read that file again when it changes")
	fs.StringVar(&f.mediaType, mediaTypeFlag, wire.TypeProtobuf, "`media type` in which objects of built-in kinds are stored: "+strings.Join(storedMediaTypes(), ", "))
}

func (f *encryptionFlags) apply(s *setup) {
	if f.File == "" && s.given(encryptionConfigFlag+"-automatic-reload") && f.Reload {
		s.refuse(checkEncryption, errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"))
	}
	s.config.Encryption = f.Options
	if f.mediaType == "" {
		f.mediaType = wire.TypeJSON
	}
	if known := storedMediaTypes(); !slices.Contains(known, f.mediaType) {
		s.refuse(checkMediaType, fmt.Errorf("--%s %q invalid, allowed values: %s", mediaTypeFlag, f.mediaType, strings.Join(known, ", ")))
	}
	s.config.StorageMediaType = f.mediaType
}

func storedMediaTypes() []string { return []string{wire.TypeJSON, wire.TypeProtobuf, wire.TypeYAML} }
