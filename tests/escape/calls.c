/* Runs system calls from a script, one per line, and prints the result of each: "number result errno more".
 *
 * usage: calls SCRIPT [plain]. A line "case" starts a new case in a process and folder of its own. A call that could have an
 * effect outside of this folder does not run, because the program also runs without a sandbox. As root with
 * "plain" it becomes another user. Arguments:
 * - slots 0 to 7 hold descriptors; "cwd" is AT_FDCWD, "bad" a number without a descriptor
 * - in paths, %R is the case's folder, %0 to %7 the descriptor number of a slot
 * - @null, @bad, @empty, @long, @name: no address, an unmapped one, an empty path, one of 5000 and a name of 256 bytes
 * - @end:P is a path at the end of a page before an unmapped one; @cut:P is not terminated there */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int slots[8];
static char root[4096];
static char *words[12];
static int count, line_number;

static char *text(int i) { return i < count ? words[i] : ""; }
static long number(int i) { return strtol(text(i), 0, 0); }

static int folder(int i) {
    if (!strcmp(text(i), "cwd")) return AT_FDCWD;
    if (!strcmp(text(i), "bad")) return 99;
    return slots[number(i) & 7];
}

static char *at_page_end(const char *path, int terminated) {
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page + 4096, 4096);
    size_t length = strlen(path) + (terminated ? 1 : 0);
    return memcpy(page + 4096 - length, path, length);
}

static char *path(int i) {
    static char buffers[4][8192];
    static int next;
    const char *from = text(i);
    char *buffer = buffers[next++ & 3], *to = buffer;
    if (!strcmp(from, "@null")) return 0;
    if (!strcmp(from, "@bad")) return (char *)8;
    if (!strcmp(from, "@empty")) return "";
    if (!strncmp(from, "@end:", 5)) return at_page_end(from + 5, 1);
    if (!strncmp(from, "@cut:", 5)) return at_page_end(from + 5, 0);
    if (!strcmp(from, "@long") || !strcmp(from, "@name")) {
        size_t length = from[1] == 'l' ? 5000 : 256;
        memset(buffer, 'x', length);
        for (size_t at = 9; from[1] == 'l' && at < length; at += 10) buffer[at] = '/';
        buffer[length] = 0;
        return buffer;
    }
    for (; *from; from++) {
        if (*from != '%') *to++ = *from;
        else if (*++from == 'R') to = stpcpy(to, root);
        else to += sprintf(to, "%d", slots[(*from - '0') & 7]);
    }
    *to = 0;
    return buffer;
}

static int is_below_root(int fd) {
    char link[64], target[8192] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size_t length = strlen(root);
    if (readlink(link, target, sizeof target - 1) < 0 || strncmp(target, root, length)) return 0;
    return target[length] == 0 || target[length] == '/' || target[length] == ' ';
}

/* Whether a call with the path reaches only what is below the case's folder. */
static int is_inside(int at, const char *name, int depth) {
    char parent[8192] = ".", last[8192];
    if (depth > 10) return 0;
    if (!name || name == (char *)8) return 1;
    if (faccessat(at, name, F_OK, 0) < 0 && (errno == EFAULT || errno == ENAMETOOLONG)) return 1;
    if (!*name) return 1; /* the folder itself, which is inside */
    const char *prefixes[] = {"/proc/self/fd/", "/dev/fd/"};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length)) continue;
        int wanted = atoi(name + length), is_slot = !strcmp(name + length, "-1") || !strcmp(name + length, "99");
        for (int slot = 0; slot < 8; slot++) is_slot |= wanted >= 3 && slots[slot] == wanted;
        return is_slot && !strchr(name + length, '/');
    }
    size_t end = strlen(name);
    while (end > 0 && name[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && name[start - 1] != '/') start--;
    if (end == 0) return 0;
    snprintf(last, sizeof last, "%.*s", (int)(end - start), name + start);
    if (start > 0) snprintf(parent, sizeof parent, "%.*s", (int)start, name);
    int folder = openat(at, parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return 1; /* nothing can happen without the folder */
    int inside = is_below_root(folder);
    if (inside) {
        int target = openat(folder, last, O_PATH | O_CLOEXEC);
        char link[8192] = {0};
        if (target >= 0) {
            inside = is_below_root(target);
            close(target);
        } else if (readlinkat(folder, last, link, sizeof link - 1) > 0) {
            inside = is_inside(folder, link, depth + 1);
        }
    }
    close(folder);
    return inside;
}

/* The arguments of each call with a folder, or 0, and a path. */
static const struct { const char *name; int paths[4]; } CALLS[] = {
    {"open", {0, 1}}, {"openat", {1, 2}}, {"openat2", {1, 2}}, {"creat", {0, 1}}, {"mkdir", {0, 1}}, {"mkdirat", {1, 2}},
    {"rmdir", {0, 1}}, {"unlink", {0, 1}}, {"unlinkat", {1, 2}}, {"rename", {0, 1, 0, 2}}, {"renameat2", {1, 2, 3, 4}},
    {"link", {0, 1, 0, 2}}, {"linkat", {1, 2, 3, 4}}, {"symlink", {0, 2}}, {"symlinkat", {2, 3}}, {"mknod", {0, 1}},
    {"mknodat", {1, 2}}, {"truncate", {0, 1}}, {"chmod", {0, 1}}, {"fchmodat", {1, 2}}, {"fchmodat2", {1, 2}},
    {"chown", {0, 1}}, {"fchownat", {1, 2}}, {"utimensat", {1, 2}}, {"utimes", {0, 1}}, {"setxattr", {0, 1}},
    {"lsetxattr", {0, 1}}, {"removexattr", {0, 1}}, {"chdir", {0, 1}}, {"stat", {0, 1}}, {"close"}, {"write"},
    {"ftruncate"}, {"fchmod"}, {"fchown"}, {"fsetxattr"}, {"fremovexattr"}, {"fchdir"}, {"umask"},
};

static int may_run(void) {
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        const int *paths = CALLS[i].paths;
        if (strcmp(text(0), CALLS[i].name)) continue;
        for (int at = 0; at < 4 && paths[at + 1] != 0; at += 2) {
            if (!is_inside(paths[at] ? folder(paths[at]) : AT_FDCWD, path(paths[at + 1]), 0)) return 0;
        }
        return 1;
    }
    return 0;
}

static void print(long result) {
    int error = result < 0 ? errno : 0;
    printf("%d %ld %d", line_number, result < 0 ? -1 : result, error);
}

static void done(long result) {
    print(result);
    puts("");
}

/* Opening a named pipe must not wait. */
static uint64_t flags_for(int at, const char *name, uint64_t flags) {
    struct stat found;
    int is_pipe = name && fstatat(at, name, &found, 0) == 0 && S_ISFIFO(found.st_mode);
    return is_pipe ? flags | O_NONBLOCK : flags;
}

static void opened(long fd, int slot) {
    print(fd);
    if (fd >= 0) {
        struct stat found;
        fstat((int)fd, &found);
        printf(" %o %o", fcntl((int)fd, F_GETFL), found.st_mode);
        printf(" %d", fcntl((int)fd, F_GETFD));
        slots[slot] = (int)fd;
    }
    puts("");
}

static int empty(int i) {
    int slot = (int)number(i) & 7;
    if (slots[slot] >= 0) close(slots[slot]);
    slots[slot] = -1;
    return slot;
}

static void run(void) {
    char *what = text(0);
#define IS(name) (strcmp(what, name) == 0)
    if (IS("open")) {
        int slot = empty(4);
        char *name = path(1);
        opened(syscall(SYS_open, name, (int)flags_for(AT_FDCWD, name, (uint64_t)number(2)), number(3)), slot);
    } else if (IS("openat")) {
        int slot = empty(5);
        char *name = path(2);
        opened(syscall(SYS_openat, folder(1), name, (int)flags_for(folder(1), name, (uint64_t)number(3)), number(4)), slot);
    } else if (IS("openat2")) {
        int slot = empty(6);
        char *name = path(2);
        struct open_how how = {flags_for(folder(1), name, (uint64_t)number(3)), (uint64_t)number(4), (uint64_t)number(5)};
        opened(syscall(SYS_openat2, folder(1), name, &how, sizeof how), slot);
    } else if (IS("creat")) {
        int slot = empty(3);
        char *name = path(1);
        struct stat found;
        if (name && stat(name, &found) == 0 && S_ISFIFO(found.st_mode)) done(0);
        else opened(syscall(SYS_creat, name, number(2)), slot);
    } else if (IS("close")) { empty(1); done(0); }
    else if (IS("write")) done(write(folder(1), text(2), strlen(text(2))));
    else if (IS("ftruncate")) done(ftruncate(folder(1), number(2)));
    else if (IS("mkdir")) done(syscall(SYS_mkdir, path(1), number(2)));
    else if (IS("mkdirat")) done(syscall(SYS_mkdirat, folder(1), path(2), number(3)));
    else if (IS("rmdir")) done(syscall(SYS_rmdir, path(1)));
    else if (IS("unlink")) done(syscall(SYS_unlink, path(1)));
    else if (IS("unlinkat")) done(syscall(SYS_unlinkat, folder(1), path(2), number(3)));
    else if (IS("rename")) done(syscall(SYS_rename, path(1), path(2)));
    else if (IS("renameat2")) done(syscall(SYS_renameat2, folder(1), path(2), folder(3), path(4), number(5)));
    else if (IS("link")) done(syscall(SYS_link, path(1), path(2)));
    else if (IS("linkat")) done(syscall(SYS_linkat, folder(1), path(2), folder(3), path(4), number(5)));
    else if (IS("symlink")) done(syscall(SYS_symlink, path(1), path(2)));
    else if (IS("symlinkat")) done(syscall(SYS_symlinkat, path(1), folder(2), path(3)));
    else if (IS("mknod")) done(syscall(SYS_mknod, path(1), number(2), 0));
    else if (IS("mknodat")) done(syscall(SYS_mknodat, folder(1), path(2), number(3), 0));
    else if (IS("truncate")) done(syscall(SYS_truncate, path(1), number(2)));
    else if (IS("chmod")) done(syscall(SYS_chmod, path(1), number(2)));
    else if (IS("fchmod")) done(syscall(SYS_fchmod, folder(1), number(2)));
    else if (IS("fchmodat")) done(syscall(SYS_fchmodat, folder(1), path(2), number(3)));
    else if (IS("fchmodat2")) done(syscall(452, folder(1), path(2), number(3), number(4)));
    else if (IS("chown")) done(syscall(SYS_chown, path(1), number(2), number(3)));
    else if (IS("fchown")) done(syscall(SYS_fchown, folder(1), number(2), number(3)));
    else if (IS("fchownat")) done(syscall(SYS_fchownat, folder(1), path(2), number(3), number(4), number(5)));
    else if (IS("utimensat")) {
        struct timespec times[2] = {{number(3), number(4)}, {number(5), number(6)}};
        done(syscall(SYS_utimensat, folder(1), path(2), times, number(7)));
    } else if (IS("utimes")) {
        struct timeval times[2] = {{number(2), number(3)}, {number(4), number(5)}};
        done(syscall(SYS_utimes, path(1), times));
    } else if (IS("setxattr")) done(setxattr(path(1), text(2), text(3), strlen(text(3)), (int)number(4)));
    else if (IS("lsetxattr")) done(lsetxattr(path(1), text(2), text(3), strlen(text(3)), (int)number(4)));
    else if (IS("fsetxattr")) done(fsetxattr(folder(1), text(2), text(3), strlen(text(3)), (int)number(4)));
    else if (IS("removexattr")) done(removexattr(path(1), text(2)));
    else if (IS("fremovexattr")) done(fremovexattr(folder(1), text(2)));
    else if (IS("chdir")) done(chdir(path(1)));
    else if (IS("fchdir")) done(fchdir(folder(1)));
    else if (IS("umask")) done(umask((mode_t)number(1)));
    else if (IS("stat")) {
        struct stat found = {0};
        print(stat(path(1), &found));
        printf(" %o %lu %ld\n", found.st_mode, found.st_nlink, S_ISREG(found.st_mode) ? found.st_size : 0);
    } else {
        printf("unknown: %s\n", what);
        exit(2);
    }
}

static void make(const char *name, const char *content) {
    int fd = open(name, O_WRONLY | O_CREAT, 0644);
    if (write(fd, content, strlen(content)) < 0) perror(name);
    close(fd);
}

static void prepare(int number) {
    snprintf(root + strlen(root), 32, "/%d", number);
    umask(022);
    if (mkdir(root, 0755) || chdir(root)) perror(root);
    mkdir("d", 0755), mkdir("d/e", 0755), mkdir("empty", 0755);
    make("a", "content of a"), make("b", "content of b"), make("d/a", "content of d/a"), make("locked", "locked");
    link("b", "hard"), mkfifo("pipe", 0644);
    symlink("a", "to_a"), symlink("d", "to_d"), symlink("nothing", "dangling"), symlink("loop", "loop");
    symlink("d/../b", "around"), symlink("d/", "to_d_slash"), symlink("a/", "to_a_slash"), symlink("to_a", "twice");
    symlink("nothing/", "dangling_slash"), symlink("d/new", "to_new"), symlink("..", "d/up"), symlink(".", "here");
    chmod("locked", 0444);
    mkdir("closed", 0755), make("closed/a", "closed"), chmod("closed", 0555);
    mkdir("hidden", 0755), make("hidden/a", "hidden"), chmod("hidden", 0);
    memset(slots, -1, sizeof slots);
}

int main(int argc, char **argv) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    char line[8192];
    /* Numbers of descriptors are compared. */
    close_range(3, ~0U, 0);
    static char text[1 << 22];
    int fd = open(argc > 1 ? argv[1] : "", O_RDONLY);
    long length = read(fd, text, sizeof text);
    close(fd);
    if (length <= 0 || !getcwd(root, sizeof root - 64)) return perror("script"), 1;
    FILE *script = fmemopen(text, (size_t)length, "r");
    if (argc > 2 && geteuid() == 0 && (setgroups(0, 0) || setgid(65534) || setuid(65534))) return perror("user"), 1;
    /* Without capabilities, as in a sandbox, which refuses this call. */
    syscall(SYS_capset, &header, none);
    int cases = 0, is_child = 0;
    while (fgets(line, sizeof line, script)) {
        line_number++;
        if (!strncmp(line, "case", 4)) {
            if (is_child) break;
            printf("case %d\n", cases);
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                is_child = 1;
                prepare(cases);
                continue;
            }
            waitpid(child, 0, 0);
            cases++;
        } else if (is_child) {
            count = 0;
            for (char *word = strtok(line, " \n"); word && count < 12; word = strtok(0, " \n")) words[count++] = word;
            if (count == 0) continue;
            if (may_run()) run();
            else printf("%d skipped\n", line_number);
            fflush(stdout);
        }
    }
    fflush(stdout);
    return 0;
}
