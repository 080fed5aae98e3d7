/*
 * Calls that race: results that a kernel never gives without a sandbox.
 *
 * races pairs SEED     Pairs of calls, on two threads, while a third makes, moves and removes the folder of both. The seed
 *                      decides their order. Ends after some seconds.
 * races tree THREADS   Threads that make nested folders with files, as package managers do.
 * races open ROUNDS    Opens one file again and again, which other programs move.
 * races moved ROUNDS   Threads that make files in a folder, which another thread moves to `e`. Prints how many files were
 *                      in the folder after a move.
 *
 * Everything happens in the working directory. Prints one line for each call and error: CALL WITH ERROR COUNT.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static int closed(int fd) { return fd < 0 ? -1 : close(fd); }

static int mkdir_here(void) { return mkdir("d", 0755); }
static int rmdir_here(void) { return rmdir("d"); }
static int move_folder(void) { return rename("d", "e"); }
static int move_folder_back(void) { return rename("e", "d"); }
static int exchange(void) { return syscall(SYS_renameat2, AT_FDCWD, "d", AT_FDCWD, "e", 2); }
static int mkdir_inner(void) { return mkdir("d/g", 0755); }
static int rmdir_inner(void) { return rmdir("d/g"); }
static int mkdir_deep(void) { return mkdir("d/g/h", 0755); }
static int create(void) { return closed(open("d/f", O_CREAT | O_WRONLY, 0644)); }
static int create_new(void) { return closed(open("d/f", O_CREAT | O_EXCL | O_RDWR, 0644)); }
static int create_truncate(void) { return closed(open("d/f", O_CREAT | O_TRUNC | O_WRONLY, 0644)); }
static int create_for_reading(void) { return closed(open("d/f", O_CREAT | O_RDONLY | O_NONBLOCK, 0644)); }
static int create_at_link(void) { return closed(open("d/l", O_CREAT | O_WRONLY, 0644)); }
static int create_around(void) { return closed(open("d/g/../f", O_CREAT | O_WRONLY, 0644)); }
static int write_only(void) { return closed(open("d/f", O_WRONLY | O_NONBLOCK)); }
static int read_truncate(void) { return closed(open("d/f", O_RDONLY | O_TRUNC | O_NONBLOCK)); }
static int no_follow(void) { return closed(open("d/f", O_RDWR | O_NOFOLLOW | O_NONBLOCK)); }
static int unnamed(void) { return closed(open("d", O_TMPFILE | O_RDWR, 0644)); }
static int remove_file(void) { return unlink("d/f"); }
static int remove_link(void) { return unlink("d/l"); }
static int make_link(void) { return symlink("f", "d/l"); }
static int make_link_to_folder(void) { return symlink("g", "d/l"); }
static int replace_by_link(void) { return symlink("g", "d/t") | rename("d/t", "d/f"); }
static int move_file(void) { return rename("d/f", "d/m"); }
static int move_file_back(void) { return rename("d/m", "d/f"); }
static int move_in(void) { return rename("source", "d/f"); }
static int move_out(void) { return rename("d/f", "source"); }
static int hard_link(void) { return link("d/f", "d/n"); }
static int remove_hard_link(void) { return unlink("d/n"); }
static int make_pipe(void) { return mknod("d/p", S_IFIFO | 0644, 0); }
static int make_node(void) { return mknod("d/f", S_IFREG | 0644, 0); }
static int cut(void) { return truncate("d/f", 3); }
static int change_mode(void) { return chmod("d/f", 0600); }
static int change_times(void) { return utimensat(AT_FDCWD, "d/f", NULL, AT_SYMLINK_NOFOLLOW); }
static int change_attribute(void) { return setxattr("d/f", "user.one", "1", 1, 0); }

static int create_in_folder(void)
{
	int folder = open("d", O_PATH | O_DIRECTORY);
	if (folder < 0)
		return -1;
	int result = closed(openat(folder, "f", O_CREAT | O_WRONLY, 0644));
	int error = errno;
	close(folder);
	errno = error;
	return result;
}

static int create_beneath(void)
{
	struct open_how how = { .flags = O_CREAT | O_WRONLY, .mode = 0644, .resolve = RESOLVE_BENEATH };
	return closed(syscall(SYS_openat2, AT_FDCWD, "d/f", &how, sizeof how));
}

static int create_by_long_how(void)
{
	struct { struct open_how how; unsigned long more; } how = { { .flags = O_CREAT | O_WRONLY, .mode = 0644 } };
	return closed(syscall(SYS_openat2, AT_FDCWD, "d/f", &how, sizeof how));
}

struct call {
	const char *name;
	int (*run)(void);
};

#define CALL(name) { #name, name }
static const struct call calls[] = {
	CALL(mkdir_here), CALL(rmdir_here), CALL(move_folder), CALL(move_folder_back), CALL(exchange),
	CALL(mkdir_inner), CALL(rmdir_inner), CALL(mkdir_deep), CALL(create), CALL(create_new),
	CALL(create_truncate), CALL(create_for_reading), CALL(create_at_link), CALL(create_around), CALL(write_only),
	CALL(read_truncate), CALL(no_follow), CALL(unnamed), CALL(remove_file), CALL(remove_link), CALL(make_link),
	CALL(make_link_to_folder), CALL(replace_by_link), CALL(move_file), CALL(move_file_back), CALL(move_in),
	CALL(move_out), CALL(hard_link), CALL(remove_hard_link), CALL(make_pipe), CALL(make_node), CALL(cut),
	CALL(change_mode), CALL(change_times), CALL(change_attribute), CALL(create_in_folder), CALL(create_beneath),
	CALL(create_by_long_how),
};
enum { CALLS = sizeof calls / sizeof calls[0], PAIRS = CALLS * (CALLS + 1) / 2, ERRORS = 134, ROUNDS = 50, SECONDS = 5 };

static atomic_int running;

struct side {
	const struct call *call;
	long counts[ERRORS];
};

static void *repeat(void *data)
{
	struct side *side = data;
	for (int round = 0; round < ROUNDS; round++) {
		int error = side->call->run() < 0 ? errno : 0;
		side->counts[error < ERRORS ? error : ERRORS - 1]++;
	}
	atomic_fetch_sub(&running, 1);
	return NULL;
}

/* Makes, moves and removes what the calls name. */
static void *disturb(void *data)
{
	while (atomic_load(&running) > 0) {
		mkdir("d", 0755);
		mkdir("d/g", 0755);
		closed(open("d/f", O_CREAT | O_WRONLY, 0644));
		symlink("f", "d/l");
		rename("d", "e");
		rename("e", "d");
		static const char *const names[] = { "d/f", "d/l", "d/m", "d/n", "d/p", "d/t" };
		for (int name = 0; name < 6; name++)
			unlink(names[name]);
		rmdir("d/g/h");
		rmdir("d/g");
		rmdir("d");
	}
	return data;
}

static void race(const struct call *one, const struct call *other)
{
	struct side sides[2] = { { one }, { other } };
	pthread_t threads[3];
	closed(open("source", O_CREAT | O_WRONLY, 0644));
	atomic_store(&running, 2);
	pthread_create(&threads[0], NULL, repeat, &sides[0]);
	pthread_create(&threads[1], NULL, repeat, &sides[1]);
	pthread_create(&threads[2], NULL, disturb, NULL);
	for (int thread = 0; thread < 3; thread++)
		pthread_join(threads[thread], NULL);
	for (int side = 0; side < 2; side++)
		for (int error = 0; error < ERRORS; error++)
			if (sides[side].counts[error])
				printf("%s %s %d %ld\n", sides[side].call->name, sides[!side].call->name, error, sides[side].counts[error]);
}

/* Makes a folder and the folders above it, from the innermost one, as Node.js does. */
static int make_folders(char *path)
{
	for (;;) {
		if (mkdir(path, 0755) == 0 || errno == EEXIST)
			return 0;
		char *slash = strrchr(path, '/');
		if (errno != ENOENT || !slash)
			return errno;
		*slash = 0;
		int error = make_folders(path);
		*slash = '/';
		if (error)
			return error;
	}
}

static void *install(void *data)
{
	long thread = (long)data;
	for (int package = 0; package < 60; package++)
		for (int part = 0; part < 4; part++) {
			char path[200], file[240], target[280];
			snprintf(path, sizeof path, "node_modules/p%d/lib/part%d/deep/er", package, part);
			int error = make_folders(path);
			snprintf(file, sizeof file, "%s/.f%ld.tmp", path, thread);
			snprintf(target, sizeof target, "%s/f%ld.js", path, thread);
			int fd = error ? -1 : open(file, O_CREAT | O_EXCL | O_WRONLY, 0644);
			if (!error && (fd < 0 || write(fd, "x", 1) != 1 || fchmod(fd, 0755) || close(fd) || rename(file, target)
				       || chmod(target, 0644) || truncate(target, 1)))
				error = errno;
			printf("install %d %d 1\n", package, error);
		}
	return NULL;
}

static int moved_folder;
static atomic_int moves_are_over;

static void *make_in_moved_folder(void *data)
{
	char name[20];
	snprintf(name, sizeof name, "f%ld", (long)data);
	while (!moves_are_over) {
		closed(openat(moved_folder, name, O_CREAT | O_WRONLY, 0644));
		unlinkat(moved_folder, name, 0);
	}
	return NULL;
}

static void race_with_moves(int rounds)
{
	enum { MAKERS = 3 };
	pthread_t makers[MAKERS];
	long files = 0;
	mkdir("d", 0755);
	moved_folder = open("d", O_RDONLY | O_DIRECTORY);
	for (long maker = 0; maker < MAKERS; maker++)
		pthread_create(&makers[maker], NULL, make_in_moved_folder, (void *)maker);
	for (int round = 0; round < rounds; round++) {
		if (rename("d", "e"))
			continue;
		for (int maker = 0; maker < MAKERS; maker++) {
			char name[20];
			snprintf(name, sizeof name, "e/f%d", maker);
			files += access(name, F_OK) == 0;
		}
		rename("e", "d");
	}
	moves_are_over = 1;
	for (int maker = 0; maker < MAKERS; maker++)
		pthread_join(makers[maker], NULL);
	printf("moved %ld\n", files);
}

int main(int count, char **arguments)
{
	int number = count > 2 ? atoi(arguments[2]) : 0;
	if (count < 3)
		return 2;
	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	if (!strcmp(arguments[1], "tree")) {
		pthread_t threads[number];
		for (long thread = 0; thread < number; thread++)
			pthread_create(&threads[thread], NULL, install, (void *)thread);
		for (int thread = 0; thread < number; thread++)
			pthread_join(threads[thread], NULL);
		return 0;
	}
	if (!strcmp(arguments[1], "moved")) {
		race_with_moves(number);
		return 0;
	}
	if (!strcmp(arguments[1], "open")) {
		long counts[ERRORS] = { 0 };
		for (int round = 0; round < number; round++) {
			int error = create() < 0 ? errno : 0;
			counts[error < ERRORS ? error : ERRORS - 1]++;
		}
		for (int error = 0; error < ERRORS; error++)
			if (counts[error])
				printf("create others %d %ld\n", error, counts[error]);
		return 0;
	}
	int pairs[PAIRS][2], all = 0;
	for (int one = 0; one < CALLS; one++)
		for (int other = one; other < CALLS; other++, all++)
			pairs[all][0] = one, pairs[all][1] = other;
	srandom(number);
	time_t start = time(NULL);
	for (; all > 0 && time(NULL) < start + SECONDS; all--) {
		int next = random() % all;
		race(&calls[pairs[next][0]], &calls[pairs[next][1]]);
		memcpy(pairs[next], pairs[all - 1], sizeof pairs[next]);
	}
	return 0;
}
