package flow

import (
	"crypto/sha256"
	"encoding/binary"
)

// This file is shuffle sharding: which queues of a level a flow may use.

// maxHand is the largest hand size: validation limits log2(queues)*hand to 60, and a
// hand is not larger than the number of queues.
const maxHand = 16

// hash identifies a flow. All servers of a cluster compute the same hash.
func hash(schema, distinguisher string) uint64 {
	var space [128]byte
	text := append(space[:0], schema...)
	text = append(text, 0)
	text = append(text, distinguisher...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:8])
}

// dealHand returns the queues that a flow may use: a hand of cards from a deck that the
// hash shuffles. Two flows hardly ever have the same hand, so a flow that fills all of
// its queues leaves nearly every other flow a free one.
func dealHand(hash uint64, deck, hand int, into *[maxHand]int) []int {
	for i := range hand {
		left := uint64(deck - i)
		into[i] = int(hash % left)
		hash /= left
	}
	// Each number is an index among the cards that were left when it was drawn. Convert
	// from the last one on, while the numbers before it are still such indexes.
	for i := hand - 1; i > 0; i-- {
		for j := i - 1; j >= 0; j-- {
			if into[i] >= into[j] {
				into[i]++
			}
		}
	}
	return into[:hand]
}
