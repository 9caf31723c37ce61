package main

import (
	"bufio"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
)

// config is what the host writes before it boots the machine.
type config struct {
	Listen   string            `json:"listen"`   // where commands are taken
	Token    string            `json:"token"`    // without it nothing is done: the port is on the host's loopback
	Forwards map[string]string `json:"forwards"` // address here -> address where it really is
}

// request is one line from the host; Op says which of the other fields count.
type request struct {
	Token    string            `json:"token"`
	Op       string            `json:"op"`
	Name     string            `json:"name"`
	Argv     []string          `json:"argv"`
	Environ  map[string]string `json:"environ"`
	Input    []byte            `json:"input"`
	Log      string            `json:"log"`
	Signal   int               `json:"signal"`
	TimeoutS float64           `json:"timeout_s"`
	// Of a program to start: begin again what ends by itself, and abort what says nothing for so long (0: never).
	Restarts  bool    `json:"restarts"`
	WatchdogS float64 `json:"watchdog_s"`
}

// answer is the one line that goes back.
type answer struct {
	Error    string `json:"error,omitempty"`
	Code     int    `json:"code"`
	Out      []byte `json:"out"`
	Err      []byte `json:"err"`
	TimedOut bool   `json:"timed_out"`
	Pid      int    `json:"pid"`
	Running  bool   `json:"running"`
}

// serve answers requests, each on a connection of its own, until the machine ends.
func serve(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config config
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for here, there := range config.Forwards {
		if err := forward(here, there); err != nil {
			return err
		}
	}
	listener, err := net.Listen("tcp", config.Listen)
	if err != nil {
		return err
	}
	services := newServices()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go converse(connection, config.Token, services)
	}
}

func converse(connection net.Conn, token string, services *services) {
	defer connection.Close()
	line, err := bufio.NewReader(connection).ReadBytes('\n')
	if err != nil {
		return // the host only looked whether somebody is here
	}
	var asked request
	reply := answer{Error: "not a request of this lab"}
	if json.Unmarshal(line, &asked) == nil && subtle.ConstantTimeCompare([]byte(asked.Token), []byte(token)) == 1 {
		reply = services.answer(asked)
	}
	if err := json.NewEncoder(connection).Encode(reply); err != nil {
		log.Print(err)
	}
}

// forward lets programs here reach an address of the host under the name it has there (a kubeconfig's 127.0.0.1).
func forward(here, there string) error {
	listener, err := net.Listen("tcp", here)
	if err != nil {
		return err
	}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go join(near, there)
		}
	}()
	return nil
}

func join(near net.Conn, there string) {
	defer near.Close()
	far, err := net.Dial("tcp", there)
	if err != nil {
		log.Print(err)
		return
	}
	defer far.Close()
	go func() {
		io.Copy(far, near)
		far.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(near, far)
}
