package engine

import (
	"encoding/binary"
	"fmt"
)

// Tags of Pebble's version edits, and of the fields of a new table, as far as this program
// makes them (package pebble/internal/manifest describes them).
const (
	editComparer    = 1
	editLog         = 2
	editNextFile    = 3
	editLastSeq     = 4
	editDeleteTable = 6
	editNewTable    = 103
	editNewBlob     = 107
	editDeleteBlob  = 108

	fieldEnd       = 1
	fieldBlobs     = 69
	fieldMandatory = 64 // a field that may not be skipped has this bit
)

// tableFiles returns the tables and blob files that a manifest names, with their sizes.
func tableFiles(manifest []byte) (map[string]int64, error) {
	files := map[string]int64{}
	var record []byte
	var err error
	chunkReader{b: manifest}.each(func(c chunk) {
		if record = append(record, manifest[c.begin:c.end]...); c.position == 0 || c.position == 3 {
			if err == nil {
				err = applyEdit(record, files)
			}
			record = record[:0]
		}
	})
	return files, err
}

// applyEdit applies a version edit to a set of files.
func applyEdit(edit []byte, files map[string]int64) (err error) {
	number := func() uint64 {
		v, n := binary.Uvarint(edit)
		if n <= 0 {
			err, edit = fmt.Errorf("%w: version edit", errCorrupt), nil
			return 0
		}
		edit = edit[n:]
		return v
	}
	skipText := func() {
		n := number()
		if n > uint64(len(edit)) {
			err, n = fmt.Errorf("%w: version edit", errCorrupt), uint64(len(edit))
		}
		edit = edit[n:]
	}
	for len(edit) > 0 && err == nil {
		switch tag := number(); tag {
		case editComparer:
			skipText()
		case editLog, editNextFile, editLastSeq:
			number()
		case editDeleteTable:
			number()
			delete(files, fmt.Sprintf("%06d%s", number(), tableSuffix))
		case editNewTable:
			number()
			name := fmt.Sprintf("%06d%s", number(), tableSuffix)
			files[name] = int64(number())
			skipText()
			skipText()
			number()
			number()
			for field := number(); field != fieldEnd && err == nil; field = number() {
				switch {
				case field == fieldBlobs:
					number()
					for n := number(); n > 0 && err == nil; n-- {
						number()
						number()
					}
				case field&fieldMandatory != 0:
					return fmt.Errorf("%w: version edit has field %d", errCorrupt, field)
				default:
					skipText()
				}
			}
		case editNewBlob:
			number()
			name := fmt.Sprintf("%06d%s", number(), blobSuffix)
			files[name] = int64(number())
			number()
			number()
		case editDeleteBlob:
			number()
			delete(files, fmt.Sprintf("%06d%s", number(), blobSuffix))
		default:
			return fmt.Errorf("%w: version edit has tag %d", errCorrupt, tag)
		}
	}
	return err
}
