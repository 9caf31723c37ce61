package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// watchdog aborts a program that says nothing for too long, as systemd's WatchdogSec does: Go then writes what each
// goroutine does into the log. It begins with the program's first word. nil: there is none.
type watchdog struct {
	socket  *net.UnixConn
	silence time.Duration
}

func listenFor(name string, silence time.Duration) (*watchdog, error) {
	address := &net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("@watchdog-%s-%d", name, time.Now().UnixNano())}
	socket, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		return nil, err
	}
	return &watchdog{socket: socket, silence: silence}, nil
}

// environ is what sd_watchdog_enabled(3) and sd_notify(3) read.
func (one *watchdog) environ() []string {
	return []string{
		"NOTIFY_SOCKET=" + one.socket.LocalAddr().String(),
		fmt.Sprintf("WATCHDOG_USEC=%d", one.silence.Microseconds()),
	}
}

// guard listens until the socket is closed.
func (one *watchdog) guard(process *os.Process) {
	if one == nil {
		return
	}
	buffer := make([]byte, 4096)
	for {
		count, err := one.socket.Read(buffer)
		if os.IsTimeout(err) {
			log.Printf("process %d said nothing for %s: aborting it", process.Pid, one.silence)
			process.Signal(syscall.SIGABRT)
			one.socket.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil {
			return // the program ended
		}
		if strings.Contains(string(buffer[:count]), "WATCHDOG=1") {
			one.socket.SetReadDeadline(time.Now().Add(one.silence))
		}
	}
}

func (one *watchdog) close() {
	if one != nil {
		one.socket.Close()
	}
}
