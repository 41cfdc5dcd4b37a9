package main

import (
	"errors"

	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/spf13/pflag"
)

// encryptionFlags are the flags of encryption at rest.
type encryptionFlags struct{ encrypt.Options }

const encryptionConfigFlag = "encryption-provider-config"

func (f *encryptionFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.File, encryptionConfigFlag, "", "`file` with an EncryptionConfiguration: which resources are stored encrypted, and how")
	fs.BoolVar(&f.Reload, encryptionConfigFlag+"-automatic-reload", true, "read that file again when it changes")
}

func (f *encryptionFlags) apply(s *setup) {
	if f.File == "" && s.given(encryptionConfigFlag+"-automatic-reload") && f.Reload {
		s.refuse(checkEncryption, errors.New("--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"))
	}
	s.config.Encryption = f.Options
}
