// A statically linked Go program that uses io_uring itself. It covers preemption by signals, the profiler, garbage
// collection, threads that end, a server, and child programs. Its output is the same natively and as a guest.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	setup = 425
	enter = 426
	nop   = 0
	read  = 22
)

type offsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                  uint64
}

type completionOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                  uint64
}

type params struct {
	sqEntries, cqEntries, flags, threadCPU, idle, features, wq uint32
	_                                                         [3]uint32
	sq                                                        offsets
	cq                                                        completionOffsets
}

type ring struct {
	fd               int
	p                params
	rings, sqes      []byte
	submitted, taken uint32
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	return value
}

func newRing() *ring {
	r := &ring{}
	fd, _, errno := syscall.Syscall(setup, 8, uintptr(unsafe.Pointer(&r.p)), 0)
	if errno != 0 {
		fmt.Println("io_uring_setup:", errno)
		os.Exit(1)
	}
	r.fd = int(fd)
	protection, flags := syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_POPULATE
	size := max(r.p.cq.cqes+r.p.cqEntries*16, r.p.sq.array+r.p.sqEntries*4)
	r.rings = must(syscall.Mmap(r.fd, 0, int(size), protection, flags))
	r.sqes = must(syscall.Mmap(r.fd, 0x10000000, int(r.p.sqEntries*64), protection, flags))
	return r
}

func (r *ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }

// Makes one request and returns its result.
func (r *ring) do(opcode byte, fd int, buffer []byte, offset uint64) int32 {
	tail := r.submitted
	index := tail & *r.word(r.p.sq.mask)
	sqe := r.sqes[index*64 : index*64+64]
	clear(sqe)
	sqe[0] = opcode
	*(*int32)(unsafe.Pointer(&sqe[4])) = int32(fd)
	*(*uint64)(unsafe.Pointer(&sqe[8])) = offset
	if len(buffer) > 0 {
		*(*uintptr)(unsafe.Pointer(&sqe[16])) = uintptr(unsafe.Pointer(&buffer[0]))
		*(*uint32)(unsafe.Pointer(&sqe[24])) = uint32(len(buffer))
	}
	*r.word(r.p.sq.array + index*4) = index
	r.submitted++
	atomic.StoreUint32(r.word(r.p.sq.tail), r.submitted)
	submit := uintptr(1)
	for atomic.LoadUint32(r.word(r.p.cq.tail)) == r.taken {
		n, _, errno := syscall.Syscall6(enter, uintptr(r.fd), submit, 1, 1, 0, 0)
		if errno != 0 && errno != syscall.EINTR {
			fmt.Println("io_uring_enter:", errno)
			os.Exit(1)
		}
		if errno == 0 {
			submit -= n
		}
	}
	at := r.p.cq.cqes + (r.taken&*r.word(r.p.cq.mask))*16
	result := *(*int32)(unsafe.Pointer(&r.rings[at+8]))
	r.taken++
	atomic.StoreUint32(r.word(r.p.cq.head), r.taken)
	runtime.KeepAlive(buffer)
	return result
}

func (r *ring) close() {
	syscall.Munmap(r.sqes)
	syscall.Munmap(r.rings)
	syscall.Close(r.fd)
}

func preemption() {
	runtime.GOMAXPROCS(1)
	var stop atomic.Bool
	var count atomic.Uint64
	for i := 0; i < 4; i++ {
		go func() {
			for !stop.Load() {
				count.Add(1)
			}
		}()
	}
	for i := 0; i < 20; i++ {
		time.Sleep(time.Millisecond)
	}
	stop.Store(true)
	runtime.GOMAXPROCS(4)
	fmt.Println("busy loops were preempted:", count.Load() > 0)
}

func profiled(file *os.File) {
	var profile bytes.Buffer
	var wait sync.WaitGroup
	var bad atomic.Int64
	pprof.StartCPUProfile(&profile)
	for g := 0; g < 8; g++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			r := newRing()
			defer r.close()
			for i := 0; i < 2000; i++ {
				buffer := make([]byte, 512)
				if r.do(nop, -1, nil, 0) != 0 || r.do(read, int(file.Fd()), buffer, 0) != 512 || buffer[511] != 'y' {
					bad.Add(1)
				}
				if i%200 == 0 {
					runtime.GC()
				}
			}
		}()
	}
	wait.Wait()
	pprof.StopCPUProfile()
	fmt.Println("bad requests:", bad.Load(), "a profile:", profile.Len() > 100)
}

func threads() {
	var wait sync.WaitGroup
	for i := 0; i < 200; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			runtime.LockOSThread() // ends with the goroutine
			r := newRing()
			r.do(nop, -1, nil, 0)
			r.close()
		}()
		if i%20 == 19 {
			wait.Wait()
		}
	}
	fmt.Println("200 threads")
}

// Reads files through rings while the profiler's signals arrive, loops are preempted and garbage is collected.
func server() {
	var profile bytes.Buffer
	var stop atomic.Bool
	var wait sync.WaitGroup
	var bad atomic.Int64
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r := newRing()
		defer r.close()
		text := make([]byte, 4)
		file := must(os.Open("/proc/version"))
		defer file.Close()
		r.do(read, int(file.Fd()), text, 0)
		w.Write(text[:2])
	}))
	pprof.StartCPUProfile(&profile)
	go func() {
		for !stop.Load() {
		}
	}()
	for client := 0; client < 8; client++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := 0; i < 50; i++ {
				answer := must(http.Get("http://" + listener.Addr().String()))
				body := must(io.ReadAll(answer.Body))
				answer.Body.Close()
				if string(body) != "Li" {
					bad.Add(1)
				}
				if i%10 == 0 {
					runtime.GC()
				}
			}
		}()
	}
	wait.Wait()
	stop.Store(true)
	pprof.StopCPUProfile()
	fmt.Println(400-bad.Load(), "answers, a profile:", profile.Len() > 100)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		r := newRing()
		fmt.Println("a child's NOP:", r.do(nop, -1, nil, 0))
		os.Exit(9)
	}
	name := os.Args[0] + ".data"
	must(0, os.WriteFile(name, bytes.Repeat([]byte("y"), 4096), 0o600))
	file := must(os.Open(name))
	preemption()
	profiled(file)
	threads()
	server()
	own := must(os.Executable())
	for _, path := range []string{own, "/proc/self/exe"} {
		command := exec.Command(path, "child")
		output, err := command.Output()
		fmt.Printf("%s%v\n", output, err)
	}
	output := must(exec.Command("sh", "-c", "echo from a shell").Output())
	fmt.Printf("%s", output)
	func() {
		defer func() { fmt.Println("recovered:", recover()) }()
		var nothing *params
		nothing.flags = 1
	}()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println("a signal:", <-signals)
	os.Exit(3)
}
