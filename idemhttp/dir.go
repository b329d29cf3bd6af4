package idemhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"crypto/rand"
)

// Dir keeps spilled bodies in a folder, which is made if it is missing: one
// file a body, readable by its owner, under a random name, complete and synced
// before it has the name that Open finds. Each Put looks through the folder
// and removes files of ours that are older than maxAge, so choose it longer
// than the executor's window; 0 removes nothing. That takes longer the more
// files there are: give each service a folder of its own, which its processes
// may share. A negative maxAge is an error.
func Dir(path string, maxAge time.Duration) (Spill, error) {
	if maxAge < 0 {
		return nil, fmt.Errorf("idemhttp: Dir: maxAge is %v, want 0 or more", maxAge)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("idemhttp: Dir: %w", err)
	}
	root, err := os.OpenRoot(path) // a ref from a shared store cannot lead out of it
	if err != nil {
		return nil, fmt.Errorf("idemhttp: Dir: %w", err)
	}
	return &dir{root, maxAge}, nil
}

const (
	bodyPrefix    = "body-"
	partialPrefix = "partial-"
)

type dir struct {
	root   *os.Root
	maxAge time.Duration
}

func (d *dir) Put(_ context.Context, _ string, body io.Reader) (ref string, err error) {
	if err := d.removeOld(time.Now()); err != nil {
		return "", fmt.Errorf("idemhttp: Dir: %w", err)
	}
	name := rand.Text()
	partial, ref := partialPrefix+name, bodyPrefix+name
	if err := d.write(partial, body); err != nil {
		return "", errors.Join(fmt.Errorf("idemhttp: Dir: %w", err), d.root.Remove(partial))
	}
	if err := d.root.Rename(partial, ref); err != nil {
		return "", errors.Join(fmt.Errorf("idemhttp: Dir: %w", err), d.root.Remove(partial))
	}
	return ref, nil
}

func (d *dir) write(name string, body io.Reader) error {
	file, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, body)
	if err == nil {
		err = file.Sync() // else a crash may leave the name without the bytes
	}
	return errors.Join(err, file.Close())
}

// removeOld also takes what a crash left half written. What another Put has
// removed, or cannot be removed, is no reason not to store the next body.
func (d *dir) removeOld(now time.Time) error {
	if d.maxAge == 0 {
		return nil
	}
	folder, err := d.root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	files, err := folder.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, file := range files {
		if !strings.HasPrefix(file.Name(), bodyPrefix) && !strings.HasPrefix(file.Name(), partialPrefix) {
			continue
		}
		if info, err := file.Info(); err == nil && now.Sub(info.ModTime()) > d.maxAge {
			d.root.Remove(file.Name())
		}
	}
	return nil
}

func (d *dir) Open(_ context.Context, ref string) (io.ReadCloser, error) {
	if !strings.HasPrefix(ref, bodyPrefix) {
		return nil, fmt.Errorf("idemhttp: Dir: %q is no body of this folder", ref)
	}
	file, err := d.root.Open(ref)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: Dir: %w", err)
	}
	return file, nil
}
