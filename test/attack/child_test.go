//go:build linux

package attack

// asChild in the environment makes this test binary run a scenario that may end its
// process.
const asChild = "ATTACK_CHILD"

func runChild(string) int { return 1 }
