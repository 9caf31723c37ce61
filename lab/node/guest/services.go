package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// services are the programs that go on running: containerd, the kubelet, the device plugin, the agent.
type services struct {
	lock   sync.Mutex
	byName map[string]*service
}

type service struct {
	process    *os.Process
	ended      chan struct{} // closed at its end; code is written before
	code       int
	isSignaled bool // the host sent a signal: it alone starts the program again
}

const restartAfter = time.Second

func newServices() *services {
	return &services{byName: map[string]*service{}}
}

func (all *services) answer(asked request) answer {
	switch asked.Op {
	case "hello":
		return answer{}
	case "run":
		return run(asked)
	case "start":
		return all.start(asked)
	case "signal":
		return all.signal(asked)
	case "look":
		return all.look(asked.Name)
	}
	return answer{Error: "unknown operation " + asked.Op}
}

// run waits for a program, no longer than asked; then it and its children are killed.
func run(asked request) answer {
	if len(asked.Argv) == 0 {
		return answer{Error: "no command"}
	}
	patience, cancel := context.WithTimeout(context.Background(), seconds(asked.TimeoutS))
	defer cancel()
	command := exec.CommandContext(patience, asked.Argv[0], asked.Argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second // a daemon it left behind may hold the pipes: do not wait for that one
	command.Env = environ(asked.Environ)
	command.Stdin = bytes.NewReader(asked.Input)
	var out, err bytes.Buffer
	command.Stdout, command.Stderr = &out, &err
	failure := command.Run()
	if command.ProcessState == nil {
		return answer{Error: failure.Error()}
	}
	return answer{
		Code: exitCode(command.ProcessState), Out: out.Bytes(), Err: err.Bytes(), TimedOut: patience.Err() != nil,
	}
}

func (all *services) start(asked request) answer {
	all.lock.Lock()
	defer all.lock.Unlock()
	return all.startLocked(asked)
}

func (all *services) startLocked(asked request) answer {
	if known := all.byName[asked.Name]; known != nil && known.runs() {
		return answer{Error: asked.Name + " runs already"}
	}
	sink, err := os.OpenFile(asked.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return answer{Error: err.Error()}
	}
	defer sink.Close()
	if len(asked.Argv) == 0 {
		return answer{Error: "no command"}
	}
	command := exec.Command(asked.Argv[0], asked.Argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Env = environ(asked.Environ)
	command.Stdout, command.Stderr = sink, sink
	var watchdog *watchdog
	if asked.WatchdogS > 0 {
		if watchdog, err = listenFor(asked.Name, seconds(asked.WatchdogS)); err != nil {
			return answer{Error: err.Error()}
		}
		command.Env = append(command.Env, watchdog.environ()...)
	}
	if err := command.Start(); err != nil {
		watchdog.close()
		return answer{Error: err.Error()}
	}
	started := &service{process: command.Process, ended: make(chan struct{})}
	all.byName[asked.Name] = started
	go watchdog.guard(started.process)
	go func() {
		command.Wait()
		watchdog.close()
		started.code = exitCode(command.ProcessState)
		close(started.ended)
		if asked.Restarts {
			all.restart(asked, started)
		}
	}()
	return answer{Pid: command.Process.Pid, Running: true}
}

// restart starts a program again that ended without the host's will.
func (all *services) restart(asked request, ended *service) {
	time.Sleep(restartAfter)
	all.lock.Lock()
	defer all.lock.Unlock()
	if all.byName[asked.Name] != ended || ended.isSignaled {
		return
	}
	if sink, err := os.OpenFile(asked.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil {
		fmt.Fprintf(sink, "%s ended with %d and is started again\n", asked.Name, ended.code)
		sink.Close()
	}
	if again := all.startLocked(asked); again.Error != "" {
		log.Printf("starting %s again: %s", asked.Name, again.Error)
	}
}

// signal sends one and, where the host asks for it by a timeout, waits for the end.
func (all *services) signal(asked request) answer {
	all.lock.Lock()
	known := all.byName[asked.Name]
	if known != nil {
		known.isSignaled = true
	}
	all.lock.Unlock()
	if known == nil {
		return answer{Error: "no service " + asked.Name}
	}
	if err := known.process.Signal(syscall.Signal(asked.Signal)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return answer{Error: err.Error()}
	}
	if asked.TimeoutS > 0 {
		select {
		case <-known.ended:
		case <-time.After(seconds(asked.TimeoutS)):
			return answer{Error: asked.Name + " did not end", TimedOut: true}
		}
	}
	return all.look(asked.Name)
}

func (all *services) look(name string) answer {
	known := all.get(name)
	if known == nil {
		return answer{Error: "no service " + name}
	}
	if known.runs() {
		return answer{Pid: known.process.Pid, Running: true}
	}
	return answer{Pid: known.process.Pid, Code: known.code}
}

func (all *services) get(name string) *service {
	all.lock.Lock()
	defer all.lock.Unlock()
	return all.byName[name]
}

func (one *service) runs() bool {
	select {
	case <-one.ended:
		return false
	default:
		return true
	}
}

// exitCode is as Python's: negative for the signal that ended the process.
func exitCode(state *os.ProcessState) int {
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		return -int(status.Signal())
	}
	return state.ExitCode()
}

func environ(more map[string]string) []string {
	all := os.Environ()
	for name, value := range more {
		all = append(all, name+"="+value)
	}
	return all
}

func seconds(count float64) time.Duration {
	return time.Duration(count * float64(time.Second))
}
