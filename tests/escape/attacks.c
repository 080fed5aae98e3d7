/* Attacks on the broker of file changes. Each tries to change the folder OUTSIDE by other ways than a shell has. Others
 * strain it, and print "as usual" if the results are those of calls without a sandbox.
 * usage: attacks NAME OUTSIDE [MILLISECONDS]. Every effect is on the test's own folders. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char *outside;
static char kept[4096], made[4096];
static volatile int stopped;

static char *in_outside(const char *name) {
    static char paths[8][4096];
    static int next;
    char *path = paths[next++ & 7];
    snprintf(path, 4096, "%s/%s", outside, name);
    return path;
}

static char *own_name(int fd) {
    static char names[4][64];
    static int next;
    char *name = names[next++ & 3];
    snprintf(name, 64, "/proc/self/fd/%d", fd);
    return name;
}

static void overwrite(int fd) {
    if (fd >= 0 && write(fd, "attacked\n", 9) < 0) perror("write");
}

/* All changes of entries in a folder with the files kept.txt and secret.txt. */
static void change_all(int folder, const char *prefix) {
    char name[16][4096];
    const char *names[] = {"made", "folder", "link", "pipe", "hard", "kept.txt", "moved", "secret.txt", "cron", "made2"};
    for (int i = 0; i < 10; i++) snprintf(name[i], 4096, "%s%s", prefix, names[i]);
    struct open_how how = {O_CREAT | O_WRONLY, 0644, 0};
    struct timespec times[2] = {{1, 0}, {1, 0}};
    overwrite(openat(folder, name[0], O_CREAT | O_WRONLY, 0644));
    syscall(SYS_openat2, folder, name[9], &how, sizeof how);
    mkdirat(folder, name[1], 0755), symlinkat("x", folder, name[2]), mknodat(folder, name[3], S_IFIFO | 0644, 0);
    linkat(folder, name[5], folder, name[4], 0), fchmodat(folder, name[5], 0600, 0);
    utimensat(folder, name[5], times, 0), utimensat(folder, name[5], times, AT_SYMLINK_NOFOLLOW);
    openat(folder, name[7], O_RDONLY | O_TRUNC), openat(folder, name[7], O_ACCMODE | O_TRUNC);
    openat(folder, name[7], O_PATH | O_TRUNC | O_RDWR);
    overwrite(openat(folder, name[5], O_WRONLY | O_APPEND));
    openat(folder, prefix[0] ? prefix : ".", O_TMPFILE | O_RDWR, 0600);
    renameat(folder, name[5], folder, name[6]), unlinkat(folder, name[7], 0), unlinkat(folder, name[8], AT_REMOVEDIR);
    renameat2(AT_FDCWD, "a.txt", folder, name[6], RENAME_EXCHANGE);
}

static void changes_by_descriptors(void) {
    int fds[] = {open(kept, O_RDONLY), open(kept, O_PATH), open(in_outside("."), O_RDONLY)};
    struct timespec times[2] = {{1, 0}, {1, 0}};
    char path[64];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "hard%d", i);
        linkat(fds[i], "", AT_FDCWD, path, AT_EMPTY_PATH);
        linkat(AT_FDCWD, own_name(fds[i]), AT_FDCWD, path, AT_SYMLINK_FOLLOW);
        link(own_name(fds[i]), path);
        overwrite(open(path, O_WRONLY));
        const char *forms[] = {"/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d", "/proc/self/../self/fd/%d", "magic"};
        for (int form = 0; form < 5; form++) {
            snprintf(path, sizeof path, forms[form], fds[i]);
            if (form == 4) symlink(own_name(fds[i]), path);
            overwrite(open(path, O_WRONLY)), open(path, O_RDONLY | O_TRUNC), truncate(path, 1), chmod(path, 0600);
            utimensat(AT_FDCWD, path, times, 0), setxattr(path, "user.x", "1", 1, 0);
        }
        unlink("magic");
        fchmod(fds[i], 0600), futimens(fds[i], times), fsetxattr(fds[i], "user.x", "1", 1, 0);
        syscall(452, fds[i], "", 0600, AT_EMPTY_PATH), fchownat(fds[i], "", -1, -1, AT_EMPTY_PATH);
        utimensat(fds[i], "", times, AT_EMPTY_PATH), syscall(SYS_utimensat, fds[i], 0, times, 0);
    }
}

static void magic_folders(void) {
    int folder = open(outside, O_PATH);
    char path[64];
    /* Without a sandbox, each leads to the test's own folders. */
    const char *targets[] = {"/proc/self/cwd", own_name(folder), "/proc/thread-self/cwd"};
    if (chdir(outside)) return;
    int work = open(getenv("WORK"), O_PATH);
    for (int i = 0; i < 3; i++) {
        unlinkat(work, "m", 0), symlinkat(targets[i], work, "m");
        openat(work, "m/made", O_CREAT | O_WRONLY, 0644), mkdirat(work, "m/folder", 0755), unlinkat(work, "m/kept.txt", 0);
        snprintf(path, sizeof path, "%s/made", targets[i]);
        creat(path, 0644);
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d/made", getpid(), folder), creat(path, 0644);
    snprintf(path, sizeof path, "/proc/%d/cwd/made", getpid()), creat(path, 0644);
    snprintf(path, sizeof path, "/proc/%d/cwd/made", getppid()), creat(path, 0644);
}

static void replaced_folder(void) {
    if (mkdir("c", 0755) || chdir("c")) return;
    rename("../c", "../c2"), symlink(outside, "../c");
    creat("inside", 0644), creat("../c/made", 0644), creat("../c/../made", 0644), mkdir("../c/folder", 0755);
    unlink("../c/kept.txt"), rename("../c/secret.txt", "../stolen"), rmdir("../c/cron/"), rmdir("../c/");
    rename("../c/", "../c3"), truncate("../c/kept.txt", 0), link("../c/kept.txt", "../hard");
}

static void set_id_bits(void) {
    creat("set1", 06755), mknod("set2", S_IFREG | 06755, 0), mkdir("set3", 06755);
    struct open_how how = {O_CREAT | O_WRONLY, 06755, 0};
    syscall(SYS_openat2, AT_FDCWD, "set4", &how, sizeof how);
    int fd = open(".", O_TMPFILE | O_RDWR, 06755);
    linkat(AT_FDCWD, own_name(fd), AT_FDCWD, "set5", AT_SYMLINK_FOLLOW);
    creat("set6", 0755), chmod("set6", 06755), fchmod(open("set6", O_RDONLY), 06755);
    fchmodat(AT_FDCWD, "set6", 04755, 0), syscall(452, AT_FDCWD, "set6", 02755, AT_SYMLINK_NOFOLLOW);
    mknod("device", S_IFCHR | 0600, 0x103), mknod("block", S_IFBLK | 0600, 0x801), mknod("socket", S_IFSOCK | 0666, 0);
}

static void own_filter(unsigned action) {
    struct sock_filter filter[] = {{6, 0, 0, action}};
    struct sock_filter some[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, SYS_openat}, {6, 0, 0, action}, {6, 0, 0, SECCOMP_RET_ALLOW}};
    struct sock_fprog all = {1, filter}, opens = {4, some};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, action == SECCOMP_RET_ALLOW ? &all : &opens);
}

static void *as_thread(void *path) {
    if (unshare(CLONE_FS) || chdir(outside)) return 0;
    creat("made", 0644), mkdir("folder", 0755), unlink("kept.txt");
    return 0;
}

/* An unnamed file gets a name, and another program moves it out. */
static void moved_file(void) {
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    linkat(AT_FDCWD, own_name(fd), AT_FDCWD, "named", AT_SYMLINK_FOLLOW);
    close(fd);
    creat("ready", 0644);
    for (int i = 0; i < 500 && access(in_outside("done"), F_OK); i++) usleep(10000);
    fd = open(in_outside("named"), O_RDONLY);
    linkat(AT_FDCWD, own_name(fd), AT_FDCWD, "hard", AT_SYMLINK_FOLLOW);
    overwrite(open("hard", O_WRONLY));
}

/* Races: a second thread changes what the first one uses. */
static char *volatile shared;
static struct open_how *volatile how;
static const char *first, *second;
static enum { PATH, HOW, LINK, EXCHANGE_LINK } kind;

static void *change_meanwhile(void *unused) {
    while (!stopped) {
        if (kind == PATH) strcpy(shared, second), strcpy(shared, first);
        if (kind == HOW) how->flags = O_WRONLY | O_TRUNC, how->flags = O_RDONLY;
        if (kind == LINK) {
            rename("race", "race_folder"), symlink(outside, "race");
            unlink("race"), rename("race_folder", "race");
        }
        if (kind == EXCHANGE_LINK) renameat2(AT_FDCWD, "race", AT_FDCWD, "race_link", RENAME_EXCHANGE);
    }
    return 0;
}

static void use(int round) {
    int fd = -1;
    char *path = kind == PATH ? shared : "race/kept.txt";
    if (kind == HOW) fd = (int)syscall(SYS_openat2, AT_FDCWD, kept, how, sizeof *how);
    else switch (round % 8) {
    case 0: fd = open(path, O_WRONLY | O_TRUNC); break;
    case 1: fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644); break;
    case 2: truncate(path, 0); break;
    case 3: chmod(path, round % 16 == 3 ? 0600 : 0644); break;
    case 4: setxattr(path, "user.x", "1", 1, 0); break;
    case 5: if (unlink(path) == 0) fd = creat(path, 0644); break;
    case 6: if (rename(path, "race_kept") == 0) rename("race_kept", path); break;
    case 7: if (link(path, "race_hard") == 0) fd = open("race_hard", O_WRONLY), unlink("race_hard"); break;
    }
    overwrite(fd);
    if (fd >= 0) close(fd);
}

static void race(long milliseconds) {
    struct timespec now, end;
    pthread_t thread;
    shared = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    how = (struct open_how *)(shared + 4096);
    strcpy(shared, first);
    clock_gettime(CLOCK_MONOTONIC, &end);
    pthread_create(&thread, 0, change_meanwhile, 0);
    int round = 0;
    do {
        use(round++);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - end.tv_sec) * 1000 + (now.tv_nsec - end.tv_nsec) / 1000000 < milliseconds);
    stopped = 1;
    pthread_join(thread, 0);
    printf("%d rounds\n", round);
}

/* Returns the number of programs that could not be executed after they had been written. */
static int execute_written(const char *name) {
    static char program[1 << 20];
    int source = open("/bin/true", O_RDONLY), failures = 0;
    long length = read(source, program, sizeof program);
    for (int round = 0; round < 150; round++) {
        int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0755), status = 0;
        if (write(fd, program, (size_t)length) != length) perror("write");
        close(fd);
        pid_t child = fork();
        if (child == 0) execl(name, name, (char *)0), _exit(errno);
        waitpid(child, &status, 0);
        failures += status != 0;
        if (round % 2) unlink(name);
    }
    return failures;
}

static void written_programs(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(execute_written("./program1") != 0);
    int failures = execute_written("./program2");
    waitpid(child, &status, 0);
    puts(failures || status ? "could not be executed" : "as usual");
}

static void limited_descriptors(void) {
    struct rlimit limit = {64, 64};
    int last = -1, fd, count = 0;
    setrlimit(RLIMIT_NOFILE, &limit);
    while ((fd = open("limited", O_CREAT | O_WRONLY, 0644)) >= 0) last = fd, count++;
    int error = errno;
    close(last);
    fd = open("limited", O_WRONLY);
    puts(error == EMFILE && last == 63 && fd == 63 && count > 50 ? "as usual" : "another limit");
}

static volatile int signals;

static void on_signal(int signal) { signals++; }

/* Calls that are interrupted before the broker takes them are not carried out. */
#define again(call) ({ long result; do result = call; while (result < 0 && errno == EINTR && !restarts); result; })

static int interrupted_calls(int restarts) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = restarts ? SA_RESTART : 0};
    struct itimerval timer = {{0, 100}, {0, 100}}, none = {0};
    int failures = 0;
    signals = 0;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &timer, 0);
    for (int round = 0; round < 600; round++) {
        if (again(mkdir("interrupted", 0755))) failures++, perror("mkdir");
        if (again(rmdir("interrupted"))) failures++, perror("rmdir");
        int fd = (int)again(open("interrupted", O_CREAT | O_EXCL | O_WRONLY, 0644));
        if (fd < 0) failures++, perror("open");
        else close(fd);
        if (again(unlink("interrupted"))) failures++, perror("unlink");
    }
    setitimer(ITIMER_REAL, &none, 0);
    return failures || signals < 20;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    long milliseconds = argc > 3 ? atol(argv[3]) : 100;
    outside = argc > 2 ? argv[2] : ".";
    snprintf(kept, sizeof kept, "%s/kept.txt", outside), snprintf(made, sizeof made, "%s/made", outside);
    setenv("WORK", getcwd(0, 0), 1);
#define IS(name) (strcmp(what, name) == 0)
    if (IS("folder")) change_all(open(outside, O_RDONLY | O_DIRECTORY), "");
    else if (IS("path-folder")) change_all(open(outside, O_PATH), "");
    else if (IS("cwd")) { if (chdir(outside) == 0) change_all(AT_FDCWD, ""); }
    else if (IS("parent")) change_all(open("sub", O_PATH), "../../outside/");
    else if (IS("link")) change_all(AT_FDCWD, "way_out/");
    else if (IS("link-slashes")) change_all(AT_FDCWD, "way_out//.//");
    else if (IS("descriptors")) changes_by_descriptors();
    else if (IS("magic")) magic_folders();
    else if (IS("replaced")) replaced_folder();
    else if (IS("set-id")) set_id_bits();
    else if (IS("allowing-filter")) own_filter(SECCOMP_RET_ALLOW), change_all(open(outside, O_PATH), "");
    else if (IS("suspending-filter")) own_filter(SECCOMP_RET_USER_NOTIF), change_all(open(outside, O_PATH), "");
    else if (IS("tracing-filter")) own_filter(SECCOMP_RET_TRACE), change_all(open(outside, O_PATH), "");
    else if (IS("dumpable")) prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), change_all(open(outside, O_PATH), "");
    else if (IS("vfork")) { if (vfork() == 0) { open(made, O_CREAT | O_WRONLY, 0644); _exit(0); } wait(0); }
    else if (IS("thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, as_thread, 0), pthread_join(thread, 0);
        creat("by_main", 0644);
    } else if (IS("high-flags")) {
        struct open_how hows[] = {{O_CREAT | O_WRONLY | 1ULL << 40, 0644, 0}, {O_CREAT | O_WRONLY, 0644, 1ULL << 40}, {O_CREAT | O_WRONLY, 1ULL << 40 | 0644, 0}};
        for (int i = 0; i < 3; i++) syscall(SYS_openat2, AT_FDCWD, made, &hows[i], sizeof *hows);
        syscall(SYS_openat, AT_FDCWD | 1L << 40, made, O_CREAT | O_WRONLY | 1L << 40, 0644L | 1L << 40);
    }
#if defined(__x86_64__)
    else if (IS("x32")) {
        syscall(0x40000000 | SYS_open, made, O_CREAT | O_WRONLY, 0644), syscall(0x40000000 | SYS_mkdir, made, 0755);
        syscall(0x40000000 | SYS_chmod, kept, 0600);
    }
#endif
    else if (IS("acl")) {
        /* Version 2; read and write for the owner, user 65534 and the mask. */
        struct { uint32_t version; struct { uint16_t tag, rights; uint32_t id; } entries[5]; } list = {
            2, {{1, 7, -1}, {2, 7, 65534}, {4, 0, -1}, {16, 7, -1}, {32, 0, -1}}};
        if (setxattr(outside, "system.posix_acl_access", &list, sizeof list, 0) == 0) return 0;
        return perror("acl"), 1;
    } else if (IS("exchange")) renameat2(AT_FDCWD, argv[2], AT_FDCWD, argv[3], RENAME_EXCHANGE);
    else if (IS("programs")) written_programs();
    else if (IS("limits")) limited_descriptors();
    else if (IS("signals")) puts(interrupted_calls(1) || interrupted_calls(0) ? "interrupted" : "as usual");
    else if (IS("moved")) moved_file();
    else if (IS("race-path")) kind = PATH, first = "a.txt", second = kept, race(milliseconds);
    else if (IS("race-state")) kind = PATH, first = argv[4], second = kept, close(creat(first, 0644)), race(milliseconds);
    else if (IS("race-how")) kind = HOW, first = second = kept, race(milliseconds);
    else if (IS("race-link") || IS("race-exchange")) {
        kind = IS("race-link") ? LINK : EXCHANGE_LINK;
        mkdir("race", 0755), close(creat("race/kept.txt", 0644)), symlink(outside, "race_link");
        first = second = kept, race(milliseconds);
    } else return fprintf(stderr, "unknown: %s\n", what), 2;
    return 0;
}
