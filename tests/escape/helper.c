/* What a shell cannot say by itself: system calls, one per name. Prints EFFECT if the call did what it must not do in the
 * read-only sandbox, and otherwise its errno. `without-capabilities NAME ...` drops all capabilities first. Built by the
 * test; harmless outside of it, because everything is done to the test's own files and processes, or in a view of the
 * system that ends with this process. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

static char secret[] = "s3cret-decoy-memory";

static int effect(long result) {
    if (result < 0) {
        fprintf(stderr, "failed: errno %d: %s\n", errno, strerror(errno));
        return 1;
    }
    puts("EFFECT");
    return 0;
}

static int unix_address(struct sockaddr_un *at, const char *path, int abstract) {
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    strncpy(at->sun_path + abstract, path, sizeof at->sun_path - 2);
    return (int)offsetof(struct sockaddr_un, sun_path) + abstract + (int)strlen(path);
}

static int drop_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    return (int)syscall(SYS_capset, &header, none);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "without-capabilities") == 0) {
        if (drop_capabilities() < 0) return effect(-1);
        argc--;
        argv++;
    }
    const char *what = argc > 1 ? argv[1] : "";
    const char *arg = argc > 2 ? argv[2] : "";
    const char *second = argc > 3 ? argv[3] : "";
    long number = atol(arg);
    struct sockaddr_un un;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number), .sin_addr = {htonl(INADDR_LOOPBACK)}};
#define IS(name) (strcmp(what, name) == 0)

    if (IS("victim")) {
        printf("%p\n", (void *)secret);
        fflush(stdout);
        for (;;) pause();
    }
    /* files */
    if (IS("mmap")) {
        int fd = open(arg, O_RDWR);
        char *at = fd < 0 ? MAP_FAILED : mmap(0, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return effect(-1);
        *at = 'X';
        return effect(0);
    }
    if (IS("mmap-upgrade")) {
        int fd = open(arg, O_RDONLY);
        char *at = mmap(0, 1, PROT_READ, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED || mprotect(at, 1, PROT_READ | PROT_WRITE) < 0) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            fd = open(path, O_RDWR);
            return effect(fd < 0 ? -1 : write(fd, "X", 1));
        }
        *at = 'X';
        return effect(0);
    }
    if (IS("read-truncate")) return effect(open(arg, O_RDONLY | O_TRUNC));
    if (IS("truncate")) return effect(truncate(arg, 1));
    if (IS("creat")) return effect(creat(arg, 0644));
    if (IS("append")) { int fd = open(arg, O_WRONLY | O_APPEND); return effect(fd < 0 ? -1 : write(fd, "x", 1)); }
    if (IS("tmpfile-link")) {
        int fd = open(".", O_TMPFILE | O_WRONLY, 0644);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        return effect(fd < 0 ? -1 : linkat(AT_FDCWD, path, AT_FDCWD, arg, AT_SYMLINK_FOLLOW));
    }
    if (IS("copy-range")) {
        int from = open(second, O_RDONLY), to = open(arg, O_WRONLY);
        return effect(to < 0 ? -1 : copy_file_range(from, 0, to, 0, 3, 0));
    }
    if (IS("sendfile")) {
        int from = open(second, O_RDONLY), to = open(arg, O_WRONLY);
        return effect(to < 0 ? -1 : sendfile(to, from, 0, 3));
    }
    if (IS("fallocate")) { int fd = open(arg, O_WRONLY); return effect(fd < 0 ? -1 : fallocate(fd, 0, 0, 1 << 16)); }
    if (IS("link")) return effect(link(arg, second));
    if (IS("rename")) return effect(rename(arg, second));
    if (IS("exchange")) return effect(renameat2(AT_FDCWD, arg, AT_FDCWD, second, 2));
    if (IS("mknod")) return effect(mknod(arg, S_IFIFO | 0644, 0));
    if (IS("mksock")) return effect(mknod(arg, S_IFSOCK | 0644, 0));
    if (IS("chmod")) return effect(chmod(arg, 0600));
    if (IS("fchmod")) return effect(fchmod(open(arg, O_RDONLY), 0600));
    if (IS("fchmodat2")) return effect(syscall(452, AT_FDCWD, arg, 0600, AT_SYMLINK_NOFOLLOW));
    if (IS("listener")) {
        struct sock_filter filter[] = {
            {0x20, 0, 0, 0}, {0x15, 0, 1, SYS_fchmodat}, {6, 0, 0, SECCOMP_RET_USER_NOTIF}, {6, 0, 0, SECCOMP_RET_ALLOW}};
        struct sock_fprog program = {4, filter};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        long fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
        if (fd < 0) return effect(-1);
        if (fork() == 0) _exit(syscall(SYS_fchmodat, AT_FDCWD, arg, 0600) != 0);
        struct seccomp_notif call = {0};
        ioctl((int)fd, SECCOMP_IOCTL_NOTIF_RECV, &call);
        struct seccomp_notif_resp resume = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl((int)fd, SECCOMP_IOCTL_NOTIF_SEND, &resume);
        wait(0);
        return effect(0);
    }
    if (IS("chmod-race")) {
        char *path = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t other = fork();
        for (strcpy(path, arg); other == 0;) { strcpy(path, second); strcpy(path, arg); }
        for (int i = 0; i < 2000; i++) chmod(path, 0600);
        kill(other, SIGKILL);
        return 0;
    }
    if (IS("chown")) return effect(chown(arg, 12345, 12345));
    if (IS("lchown")) return effect(lchown(arg, 12345, 12345));
    if (IS("fchown")) return effect(fchown(open(arg, O_RDONLY), 12345, 12345));
    if (IS("setxattr")) return effect(setxattr(arg, "user.x", "1", 1, 0));
    if (IS("fsetxattr")) return effect(fsetxattr(open(arg, O_RDONLY), "user.x", "1", 1, 0));
    if (IS("removexattr")) return effect(removexattr(arg, "user.decoy"));
    if (IS("utime")) { struct utimbuf t = {1, 1}; return effect(utime(arg, &t)); }
    if (IS("utimes")) { struct timeval t[2] = {{1, 0}, {1, 0}}; return effect(utimes(arg, t)); }
    if (IS("futimens")) { struct timespec t[2] = {{1, 0}, {1, 0}}; return effect(futimens(open(arg, O_RDONLY), t)); }
    if (IS("nodump-flag")) {
        int fd = open(arg, O_RDONLY), flags = 0;
        if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0) return effect(-1);
        flags |= FS_NODUMP_FL;
        return effect(ioctl(fd, FS_IOC_SETFLAGS, &flags));
    }
    if (IS("fsxattr")) {
        struct fsxattr x;
        int fd = open(arg, O_RDONLY);
        if (ioctl(fd, FS_IOC_FSGETXATTR, &x) < 0) return effect(-1);
        x.fsx_xflags |= FS_XFLAG_NOATIME;
        return effect(ioctl(fd, FS_IOC_FSSETXATTR, &x));
    }
    if (IS("by-handle")) {
        char space[sizeof(struct file_handle) + 128] __attribute__((aligned(8)));
        struct file_handle *handle = (void *)space;
        int mount_id, root = open(".", O_RDONLY);
        handle->handle_bytes = 128;
        if (name_to_handle_at(AT_FDCWD, arg, handle, &mount_id, 0) < 0) return effect(-1);
        int fd = open_by_handle_at(root, handle, O_WRONLY | O_APPEND);
        return effect(fd < 0 ? -1 : write(fd, "x", 1));
    }
    if (IS("memfd-exec")) {
        int fd = memfd_create("x", 0);
        const char *text = "#!/bin/sh\necho x > by_memfd\n";
        if (write(fd, text, strlen(text)) < 0) return effect(-1);
        char *args[] = {"x", 0}, *env[] = {"PATH=/usr/bin:/bin", 0};
        return effect(fexecve(fd, args, env));
    }
#if defined(__x86_64__)
    if (IS("int80-chmod")) {
        char *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        strcpy(low, arg);
        long result;
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(15L), "b"((long)low), "c"(0600L) : "memory");
        errno = (int)-result;
        return effect(result);
    }
#endif
    if (IS("lease-write")) return effect(fcntl(open(arg, O_RDONLY), F_SETLEASE, F_WRLCK));
    if (IS("lease-after-fork")) {
        /* The child has the same open file, and another process sets the lease on it. */
        int fd = open(arg, O_RDONLY), status;
        if (fork() == 0) _exit(fcntl(fd, F_SETLEASE, F_WRLCK) != 0);
        wait(&status);
        return effect(status ? -1 : 0);
    }
    if (IS("notify")) return effect(fcntl(open(arg, O_RDONLY), F_NOTIFY, 0x8000001f));
    if (IS("lease")) return effect(fcntl(open(arg, O_RDONLY), F_SETLEASE, F_RDLCK));
    if (IS("rw-hint")) { uint64_t hint = 2; return effect(fcntl(open(arg, O_RDONLY), 1036 /* F_SET_RW_HINT */, &hint)); }
    if (IS("getxattr")) {
        char value[64] = {0};
        long length = getxattr(arg, "user.decoy", value, sizeof value - 1);
        if (length >= 0) puts(value);
        return effect(length);
    }
    if (IS("inotify")) return effect(syscall(SYS_inotify_add_watch, syscall(SYS_inotify_init1, 0), arg, 0xfff));
    if (IS("io-uring")) { char p[256] = {0}; return effect(syscall(SYS_io_uring_setup, 4, p)); }
    /* sockets */
    if (IS("unix-stream") || IS("unix-seqpacket")) {
        int fd = socket(AF_UNIX, IS("unix-stream") ? SOCK_STREAM : SOCK_SEQPACKET, 0), length = unix_address(&un, arg, 0);
        return effect(fd < 0 ? -1 : connect(fd, (void *)&un, (socklen_t)length));
    }
    if (IS("unix-dgram")) {
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0), length = unix_address(&un, arg, 0);
        return effect(fd < 0 ? -1 : sendto(fd, "x", 1, 0, (void *)&un, (socklen_t)length));
    }
    if (IS("pair-dgram")) {
        int pair[2], length = unix_address(&un, arg, 0);
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0) return effect(-1);
        return effect(sendto(pair[0], "x", 1, 0, (void *)&un, (socklen_t)length));
    }
    if (IS("pair-reconnect")) {
        int pair[2], length = unix_address(&un, arg, 0);
        if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) < 0) return effect(-1);
        if (connect(pair[0], (void *)&un, (socklen_t)length) < 0) return effect(-1);
        return effect(send(pair[0], "x", 1, 0));
    }
    if (IS("unix-abstract")) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0), length = unix_address(&un, arg, 1);
        return effect(fd < 0 ? -1 : connect(fd, (void *)&un, (socklen_t)length));
    }
    if (IS("unix-bind")) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0), length = unix_address(&un, arg, 0);
        return effect(fd < 0 ? -1 : bind(fd, (void *)&un, (socklen_t)length));
    }
    if (IS("tcp")) { int fd = socket(AF_INET, SOCK_STREAM, 0); return effect(fd < 0 ? -1 : connect(fd, (void *)&in, sizeof in)); }
    if (IS("tcp-fastopen")) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        return effect(fd < 0 ? -1 : sendto(fd, "x", 1, MSG_FASTOPEN, (void *)&in, sizeof in));
    }
    /* Its arrival is the effect. */
    if (IS("udp")) { int fd = socket(AF_INET, SOCK_DGRAM, 0); return sendto(fd, "x", 1, 0, (void *)&in, sizeof in) < 0; }
    if (IS("socket")) return effect(socket(atoi(arg), atoi(second), argc > 4 ? atoi(argv[4]) : 0));
    /* what is shared by a key or a name */
    if (IS("make-shared")) {
        /* Printed for the attacks below; they are another program's. */
        printf("%d %d %d\n", semget(IPC_PRIVATE, 1, 0600), msgget(IPC_PRIVATE, 0600), shmget(IPC_PRIVATE, 4096, 0600));
        return 0;
    }
    if (IS("remove-shared")) {
        if (semctl((int)number, 0, IPC_RMID) || msgctl(atoi(second), IPC_RMID, 0)) return 1;
        return shmctl(atoi(argv[4]), IPC_RMID, 0) != 0;
    }
    struct sembuf add = {0, 1, IPC_NOWAIT};
    struct timespec soon = {0, 1000};
    if (IS("semop")) return effect(semop((int)number, &add, 1));
    if (IS("semop-raw")) return effect(syscall(SYS_semop, (int)number, &add, 1));
    if (IS("semtimedop")) return effect(syscall(SYS_semtimedop, (int)number, &add, 1, &soon));
    if (IS("semtimedop-forever")) return effect(syscall(SYS_semtimedop, (int)number, &add, 1, 0));
    if (IS("semctl")) return effect(semctl((int)number, 0, SETVAL, 7));
    if (IS("msgsnd")) { struct { long type; char text[1]; } message = {1, "x"}; return effect(msgsnd((int)number, &message, 1, IPC_NOWAIT)); }
    if (IS("shmat")) return effect(shmat((int)number, 0, 0) == (void *)-1 ? -1 : 0);
    if (IS("shmget")) { int id = shmget(IPC_PRIVATE, 4096, 0600); if (id >= 0) shmctl(id, IPC_RMID, 0); return effect(id); }
    if (IS("semget")) { int id = semget(IPC_PRIVATE, 1, 0600); if (id >= 0) semctl(id, 0, IPC_RMID); return effect(id); }
    if (IS("msgget")) { int id = msgget(IPC_PRIVATE, 0600); if (id >= 0) msgctl(id, IPC_RMID, 0); return effect(id); }
    if (IS("mq")) {
        char name[64];
        snprintf(name, sizeof name, "/modegate-%d", getpid());
        mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, 0);
        if (queue >= 0) mq_unlink(name);
        return effect(queue);
    }
    if (IS("add-key")) return effect(syscall(SYS_add_key, "user", "modegate-test", "x", 1, -1 /* the thread's own */));
    if (IS("bpf")) { char attr[128] = {0}; ((uint32_t *)attr)[0] = 2; ((uint32_t *)attr)[1] = 4; ((uint32_t *)attr)[2] = 4; ((uint32_t *)attr)[3] = 1; return effect(syscall(SYS_bpf, 0, attr, 72)); }
    if (IS("perf")) { char attr[128] = {0}; ((uint32_t *)attr)[0] = 1; ((uint32_t *)attr)[1] = 112; return effect(syscall(SYS_perf_event_open, attr, 0, -1, -1, 0)); }
    if (IS("userfaultfd")) return effect(syscall(SYS_userfaultfd, 1));
    if (IS("fanotify")) return effect(syscall(SYS_fanotify_init, 0, 0));
    if (IS("syslog")) { char text[64]; return effect(syscall(SYS_syslog, 3, text, sizeof text)); }
    /* other views of the system */
    if (IS("unshare")) return effect(unshare((int)strtol(arg, 0, 16)));
    if (IS("clone")) {
        long pid = syscall(SYS_clone, strtol(arg, 0, 16) | SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) _exit(0);
        if (pid > 0) waitpid((pid_t)pid, 0, 0);
        return effect(pid);
    }
    if (IS("clone3")) {
        uint64_t args[11] = {(uint64_t)strtol(arg, 0, 16), 0, 0, 0, SIGCHLD};
        long pid = syscall(SYS_clone3, args, sizeof args);
        if (pid == 0) _exit(0);
        if (pid > 0) waitpid((pid_t)pid, 0, 0);
        return effect(pid);
    }
    if (IS("mount")) {
        if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0) return effect(mount("none", arg, "tmpfs", 0, 0));
        mount(0, "/", 0, MS_REC | MS_PRIVATE, 0);
        return effect(mount("none", arg, "tmpfs", 0, 0));
    }
    if (IS("chroot")) return effect(chroot(arg));
    if (IS("setns")) return effect(setns(open("/proc/self/ns/net", O_RDONLY), 0));
    if (IS("setuid")) return effect(setuid(65534));
    if (IS("setgid")) return effect(setgid(65534));
    if (IS("setresuid")) return effect(setresuid(-1, 65534, -1));
    if (IS("setresgid")) return effect(setresgid(-1, 65534, -1));
    if (IS("setreuid")) return effect(setreuid(65534, -1));
    if (IS("setfsuid")) { setfsuid(65534); return effect(setfsuid(65534) == 65534 ? 0 : -1); }
    if (IS("setgroups")) { gid_t groups[1] = {65534}; return effect(setgroups(1, groups)); }
    if (IS("own-ids")) {
        /* What GNU make does in every child, and the rest of the family with the ids that the process has. */
        if (setresuid(-1, geteuid(), -1) || setresgid(-1, getegid(), -1)) return effect(-1);
        if (setreuid(-1, geteuid()) || setregid(-1, getegid()) || setuid(getuid()) || setgid(getgid())) return effect(-1);
        setfsuid(geteuid());
        setfsgid(getegid());
        return setfsuid(-1) != (int)geteuid() || setfsgid(-1) != (int)getegid() ? effect(-1) : puts("own ids") < 0;
    }
    if (IS("privileges")) {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct sets[2] = {{0}};
        if (syscall(SYS_capget, &header, sets) < 0) return effect(-1);
        int any = sets[0].effective | sets[0].permitted | sets[1].effective | sets[1].permitted;
        return any || prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 ? effect(0) : puts("no privileges") < 0;
    }
    if (IS("core-limit")) { struct rlimit limit; return effect(getrlimit(RLIMIT_CORE, &limit) || limit.rlim_max <= 1 ? -1 : 0); }
    /* other processes */
    pid_t pid = (pid_t)number;
    if (IS("kill")) return effect(kill(pid, SIGTERM));
    if (IS("tgkill")) return effect(syscall(SYS_tgkill, pid, pid, SIGTERM));
    if (IS("tkill")) return effect(syscall(SYS_tkill, pid, SIGTERM));
    if (IS("sigqueue")) return effect(sigqueue(pid, SIGTERM, (union sigval){0}));
    if (IS("pidfd-signal")) return effect(syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, pid, 0), SIGTERM, 0, 0));
    if (IS("pidfd-getfd")) return effect(syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, pid, 0), 1, 0));
    if (IS("owner")) {
        /* a signal by way of a pipe that changes hands */
        int pair[2];
        if (pipe(pair) < 0 || fcntl(pair[0], F_SETSIG, SIGTERM) < 0 || fcntl(pair[0], F_SETOWN, pid) < 0) return effect(-1);
        if (fcntl(pair[0], F_SETFL, O_ASYNC) < 0) return effect(-1);
        /* Whether it arrives is seen from outside. */
        return write(pair[1], "x", 1) < 0;
    }
    if (IS("ptrace-attach")) { long r = ptrace(PTRACE_ATTACH, pid, 0, 0); if (r == 0) { waitpid(pid, 0, 0); ptrace(PTRACE_DETACH, pid, 0, 0); } return effect(r); }
    if (IS("ptrace-seize")) return effect(ptrace(PTRACE_SEIZE, pid, 0, 0));
    if (IS("vm-read") || IS("vm-write")) {
        char text[32] = "X";
        struct iovec ours = {text, IS("vm-read") ? sizeof secret : 1}, theirs = {(void *)strtoul(second, 0, 16), ours.iov_len};
        long done = IS("vm-read") ? process_vm_readv(pid, &ours, 1, &theirs, 1, 0) : process_vm_writev(pid, &ours, 1, &theirs, 1, 0);
        return effect(done);
    }
    if (IS("proc-mem")) {
        char path[64], text[32] = {0};
        snprintf(path, sizeof path, "/proc/%d/mem", pid);
        int fd = open(path, O_RDWR);
        return effect(fd < 0 ? -1 : pread(fd, text, sizeof secret, (off_t)strtoul(second, 0, 16)));
    }
    if (IS("prlimit")) { struct rlimit limit = {77, 77}; return effect(prlimit(pid, RLIMIT_NOFILE, &limit, 0)); }
    if (IS("prlimit-high")) {
        /* The lower half of the address is zero. */
        struct rlimit *limit = mmap((void *)0x100000000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        limit->rlim_cur = limit->rlim_max = 77;
        return effect(syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, limit, 0));
    }
    if (IS("setpriority")) return effect(setpriority(PRIO_PROCESS, (id_t)pid, 7));
    if (IS("affinity")) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(0, &set); return effect(sched_setaffinity(pid, sizeof set, &set)); }
    if (IS("scheduler")) { struct sched_param p = {0}; return effect(sched_setscheduler(pid, SCHED_BATCH, &p)); }
    if (IS("sched-param")) { struct sched_param p = {0}; return effect(sched_setparam(pid, &p)); }
    if (IS("sched-attr")) {
        struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t rest[3]; } attr = {48, 0, 0, 7};
        return effect(syscall(SYS_sched_setattr, pid, &attr, 0));
    }
    if (IS("affinity-thread")) { cpu_set_t set; CPU_ZERO(&set); CPU_SET(0, &set); return effect(syscall(SYS_sched_setaffinity, pid, sizeof set, &set)); }
    if (IS("move-pages")) {
        /* Only asks where the pages are: a right to move them is a right to ask. */
        void *page = (void *)(strtoul(second, 0, 16) & ~4095UL);
        int status;
        return effect(syscall(SYS_move_pages, pid, 1, &page, 0, &status, 0));
    }
    if (IS("migrate-pages")) { unsigned long nodes = 1; return effect(syscall(SYS_migrate_pages, pid, 8, &nodes, &nodes)); }
    if (IS("sched-core")) return effect(prctl(62, 1, 0, 0, 0) || prctl(62, 2, pid, 0, 0) ? -1 : 0);
    if (IS("mrelease")) return effect(syscall(448, syscall(SYS_pidfd_open, pid, 0), 0) == 0 || errno == EINVAL ? 0 : -1);
    if (IS("group-priority")) return effect(setpriority(PRIO_PGRP, (id_t)getpgid(pid), 7));
    if (IS("own-priority")) {
        struct sched_param p = {0};
        if (setpriority(PRIO_PROCESS, 0, 7) || sched_setscheduler(0, SCHED_BATCH, &p) || sched_setparam(0, &p)) return effect(-1);
        return syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 7) ? effect(-1) : puts("own priority") < 0;
    }
    if (IS("ioprio")) return effect(syscall(SYS_ioprio_set, 1, pid, 2 << 13 | 3));
    if (IS("kcmp")) return effect(syscall(SYS_kcmp, getpid(), pid, 0, 0, 0));
    fprintf(stderr, "unknown: %s\n", what);
    return 2;
}

/* As a library that is preloaded. */
__attribute__((constructor)) static void preloaded(void) {
    const char *path = getenv("MODEGATE_PRELOAD_WRITES");
    if (path && open(path, O_WRONLY | O_CREAT, 0644) < 0) perror("failed");
}
