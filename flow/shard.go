package flow

import (
	"crypto/sha256"
	"encoding/binary"
)

// maxHand is the largest hand: validation wants log2(queues)*hand to be at most
// 60, and hands are not larger than the number of queues.
const maxHand = 16

// hash identifies a flow. Servers of one cluster come to the same result.
func hash(schema, distinguisher string) uint64 {
	var space [128]byte
	text := append(space[:0], schema...)
	text = append(text, 0)
	text = append(text, distinguisher...)
	sum := sha256.Sum256(text)
	return binary.LittleEndian.Uint64(sum[:8])
}

// deal returns the queues that a flow may use: a hand of cards from a deck that
// the hash shuffles. Two flows hardly ever have the same hand, so that a flow
// which fills all of its own leaves to nearly every other one that is free.
func deal(hash uint64, deck, hand int, into *[maxHand]int) []int {
	for i := range hand {
		left := uint64(deck - i)
		into[i] = int(hash % left)
		hash /= left
	}
	// Each number counts the cards that are left at its turn. From the last one
	// on, so that those in front still are such numbers when they are needed.
	for i := hand - 1; i > 0; i-- {
		for j := i - 1; j >= 0; j-- {
			if into[i] >= into[j] {
				into[i]++
			}
		}
	}
	return into[:hand]
}
