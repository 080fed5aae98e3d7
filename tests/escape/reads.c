// System calls that try to read a file, and print what they read.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void show(int fd) {
    char bytes[256];
    long count = fd < 0 ? -1 : pread(fd, bytes, sizeof bytes - 1, 0);
    if (count > 0) {
        bytes[count] = 0;
        puts(bytes);
        fflush(stdout);
    }
}

static volatile int running = 1;
static char path[4096];
static const char *names[2];

static void *flip(void *unused) {
    (void)unused;
    size_t length = strlen(names[0]) + 1;
    for (int at = 0; running; at ^= 1) {
        memcpy(path, names[at], length);
    }
    return NULL;
}

static void *swap(void *unused) {
    (void)unused;
    while (running) {
        renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE);
    }
    return NULL;
}

static void *relink(void *unused) {
    (void)unused;
    for (int at = 0; running; at ^= 1) {
        unlink("race_link");
        symlink(names[at], "race_link");
    }
    return NULL;
}

// Opens again and again while another thread changes what the path names.
static void race(void *(*change)(void *), const char *name, int flags) {
    pthread_t thread;
    struct timespec start, now;
    pthread_create(&thread, NULL, change, NULL);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        int fd = open(name, flags, 0600);
        show(fd);
        close(fd);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < 300);
    running = 0;
    pthread_join(thread, NULL);
}

int main(int count, char **arguments) {
    const char *kind = arguments[1], *target = arguments[2];
    const char *allowed = count > 3 ? arguments[3] : "";
    char name[64];
    names[0] = allowed;
    names[1] = target;
    if (!strcmp(kind, "path")) {
        int fd = open(target, O_PATH);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        show(open(name, O_RDONLY));
        snprintf(name, sizeof name, "/dev/fd/%d", fd);
        show(open(name, O_RDONLY));
        snprintf(name, sizeof name, "/proc/%d/fd/%d", getpid(), fd);
        show(open(name, O_RDONLY));
    } else if (!strcmp(kind, "path-removed")) {
        int fd = open(target, O_PATH);
        unlink(target);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        show(open(name, O_RDONLY));
    } else if (!strcmp(kind, "writer")) {
        int fd = open(target, O_WRONLY);
        unlink(target);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        show(open(name, O_RDONLY));
        show(open(name, O_RDWR));
    } else if (!strcmp(kind, "openat2")) {
        struct open_how how = {.flags = O_RDONLY};
        show(syscall(SYS_openat2, AT_FDCWD, target, &how, sizeof how));
    } else if (!strcmp(kind, "flags")) {
        int all[] = {O_RDWR, O_RDONLY | O_CREAT, O_RDWR | O_CREAT, O_RDONLY | O_APPEND, O_RDONLY | O_NONBLOCK,
                     O_RDONLY | O_NOFOLLOW, O_RDONLY | O_DIRECT, O_RDONLY | O_NOCTTY | O_NOATIME, O_ACCMODE};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
            show(open(target, all[i], 0600));
        }
    } else if (!strcmp(kind, "high-flags")) {
        show(syscall(SYS_openat, AT_FDCWD, target, 0x100000000L | O_RDONLY, 0));
    } else if (!strcmp(kind, "child")) {
        int pair = memfd_create("shared", 0);
        if (vfork() == 0) {
            char bytes[256];
            int fd = open(target, O_RDONLY);
            long length = read(fd, bytes, sizeof bytes);
            if (length > 0) {
                pwrite(pair, bytes, length, 0);
            }
            _exit(0);
        }
        wait(NULL);
        show(pair);
    } else if (!strcmp(kind, "race-path")) {
        strcpy(path, allowed);
        race(flip, path, O_RDONLY);
    } else if (!strcmp(kind, "race-create")) {
        strcpy(path, allowed);
        race(flip, path, O_RDONLY | O_CREAT);
    } else if (!strcmp(kind, "race-write")) {
        strcpy(path, allowed);
        race(flip, path, O_RDWR);
    } else if (!strcmp(kind, "race-exchange")) {
        race(swap, allowed, O_RDONLY);
    } else if (!strcmp(kind, "race-link")) {
        race(relink, "race_link", O_RDONLY);
    }
    return 0;
}
