// Command guest is what the lab runs inside the virtual machine of its real node: it takes commands from the
// host, offers test GPUs to the kubelet, and tells which pod holds which of them.
//
// Go, because under software emulation Python takes half a minute to start and this must be there first.
package main

import (
	"fmt"
	"os"
)

const usage = `usage: guest serve CONFIG | gpus UNHEALTHY-FILE ID... | pod-resources SOCKET`

func main() {
	if len(os.Args) < 3 {
		fail(usage)
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(os.Args[2])
	case "gpus":
		err = offerGPUs(os.Args[2], os.Args[3:])
	case "pod-resources":
		err = printPodResources(os.Args[2])
	default:
		fail(usage)
	}
	if err != nil {
		fail(err.Error())
	}
}

func fail(sentence string) {
	fmt.Fprintln(os.Stderr, "guest: "+sentence)
	os.Exit(2)
}
