package main

import (
	"io"
	"net"
	"sync"
)

// A wire that can be cut, to see what a client makes of it.
type cut struct {
	listener net.Listener
	target   string
	mutex    sync.Mutex
	wires    []net.Conn
}

func newCut(target string) (*cut, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cut{listener: listener, target: target}
	go c.accept()
	return c, nil
}

func (c *cut) address() string {
	return c.listener.Addr().String()
}

// Cuts every connection. New ones are taken.
func (c *cut) now() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, wire := range c.wires {
		wire.Close()
	}
	c.wires = nil
}

func (c *cut) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", c.target)
		if err != nil {
			client.Close()
			continue
		}
		c.mutex.Lock()
		c.wires = append(c.wires, client, server)
		c.mutex.Unlock()
		go passOn(client, server)
		go passOn(server, client)
	}
}

func passOn(from, to net.Conn) {
	io.Copy(to, from)
	from.Close()
	to.Close()
}
