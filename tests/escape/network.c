// Ways of a brokered command to other hosts. Prints "reached" if one works, and otherwise why not.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_FASTOPEN
#define MSG_FASTOPEN 0x20000000
#endif

static struct sockaddr_in v4(const char *host, const char *port) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
    inet_pton(AF_INET, host, &to.sin_addr);
    return to;
}

static struct sockaddr_in6 v6(const char *host, const char *port) {
    struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(port)) };
    inet_pton(AF_INET6, host, &to.sin6_addr);
    return to;
}

static int end(const char *what, int works) {
    if (works)
        printf("reached\n");
    else
        printf("%s: %s\n", what, strerror(errno));
    return !works;
}

static struct sockaddr_in rewritten, good, bad;
static volatile int done;

enum { MANY = 100, MOST_SECONDS = 20 };

// A race lasts some seconds, and on a busy machine until there were many tries.
static int goes_on(time_t start, int seconds, int tries) {
    time_t now = time(NULL) - start;
    return now < seconds || (tries <= MANY && now < MOST_SECONDS);
}

static void *rewrite(void *unused) {
    volatile in_port_t *port = &rewritten.sin_port;
    while (!done) {
        *port = good.sin_port;
        *port = bad.sin_port;
    }
    return unused;
}

// Connects while another thread changes the address. Prints how often the second address was reached.
static int race(const char *host, const char *port, const char *bad_port) {
    good = v4(host, port);
    bad = v4(host, bad_port);
    rewritten = good;
    pthread_t thread;
    pthread_create(&thread, NULL, rewrite, NULL);
    int tries = 0, reached = 0, allowed = 0;
    for (time_t start = time(NULL); goes_on(start, 2, tries); tries++) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, (struct sockaddr *)&rewritten, sizeof rewritten) == 0) {
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            getpeername(s, (struct sockaddr *)&peer, &length);
            if (peer.sin_port == bad.sin_port)
                reached++;
            else
                allowed++;
        }
        struct linger now = { 1, 0 };
        setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(s);
    }
    done = 1;
    pthread_join(thread, NULL);
    printf("tries %s, allowed %s, %s\n", tries > MANY ? "many" : "few", allowed ? "some" : "none",
           reached ? "reached" : "never the other");
    return reached > 0;
}

static volatile int racing = -1;

static void *end_connection(void *unused) {
    while (!done) {
        int s = racing;
        if (s >= 0) {
            for (volatile int i = rand() % 20000; i > 0; i--)
                ;
            shutdown(s, SHUT_RDWR);
            racing = -1;
        }
    }
    return unused;
}

// Listens while another thread ends the socket's connection, which clears its address. Prints whether it listened at
// another address than that of this machine.
static int listen_race(void) {
    struct sockaddr_in here = v4("127.0.0.1", "0"), bound;
    socklen_t length = sizeof here;
    int full = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(full, (struct sockaddr *)&here, length) || listen(full, 0))
        return end("listen", 0);
    getsockname(full, (struct sockaddr *)&here, &length);
    // Nothing is accepted, so further connections stay unfinished.
    for (int i = 0; i < 2; i++)
        connect(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), (struct sockaddr *)&here, sizeof here);
    usleep(100000);
    pthread_t thread;
    pthread_create(&thread, NULL, end_connection, NULL);
    int tries = 0, reached = 0;
    for (time_t start = time(NULL); goes_on(start, 4, tries) && !reached; tries++) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(s, (struct sockaddr *)&here, sizeof here) == 0 || errno != EINPROGRESS) {
            close(s);
            continue;
        }
        racing = s;
        listen(s, 8);
        while (racing >= 0)
            ;
        int listens = 0;
        socklen_t size = sizeof listens;
        getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
        length = sizeof bound;
        getsockname(s, (struct sockaddr *)&bound, &length);
        reached = listens && bound.sin_addr.s_addr != htonl(INADDR_LOOPBACK);
        close(s);
    }
    done = 1;
    pthread_join(thread, NULL);
    printf("tries %s, %s\n", tries > MANY ? "many" : "few", reached ? "reached" : "never elsewhere");
    return reached;
}

static int connects(int s, const struct sockaddr *to, socklen_t length) {
    if (connect(s, to, length) == 0)
        return 1;
    if (errno != EINPROGRESS)
        return 0;
    struct pollfd poll_it = { .fd = s, .events = POLLOUT };
    if (poll(&poll_it, 1, 2000) != 1)
        return 0;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0;
}

struct target {
    const char *host, *port;
};

static void *own_table(void *argument) {
    struct target *target = argument;
    unshare(CLONE_FILES);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    int high = dup2(s, 200);
    close(s);
    struct sockaddr_in to = v4(target->host, target->port);
    return (void *)(long)end("table", connects(high, (struct sockaddr *)&to, sizeof to));
}

int main(int count, char **arguments) {
    if (count < 4)
        return 2;
    const char *how = arguments[1], *host = arguments[2], *port = arguments[3];
    struct sockaddr_in to = v4(host, port);
    struct sockaddr_in6 to6 = v6(host, port);
    struct sockaddr *address = (struct sockaddr *)&to;
    socklen_t length = sizeof to;
    if (strchr(host, ':')) {
        address = (struct sockaddr *)&to6;
        length = sizeof to6;
    }
    int family = address->sa_family;
    char byte = 'x';
    struct iovec part = { &byte, 1 };
    struct msghdr message = { .msg_name = address, .msg_namelen = length, .msg_iov = &part, .msg_iovlen = 1 };
    struct mmsghdr messages = { .msg_hdr = message };
    int s = socket(family, SOCK_STREAM, 0);
    if (strcmp(how, "stream") == 0)
        return end(how, connects(s, address, length));
    if (strcmp(how, "nonblocking") == 0) {
        fcntl(s, F_SETFL, O_NONBLOCK);
        return end(how, connects(s, address, length));
    }
    if (strcmp(how, "again") == 0) {
        connect(s, address, length);
        struct sockaddr none = { .sa_family = AF_UNSPEC };
        connect(s, &none, sizeof none);
        return end(how, connects(s, address, length));
    }
    if (strcmp(how, "datagram") == 0) {
        s = socket(family, SOCK_DGRAM, 0);
        return end(how, s >= 0 && sendto(s, &byte, 1, 0, address, length) == 1);
    }
    if (strcmp(how, "fastopen-sendto") == 0)
        return end(how, sendto(s, &byte, 1, MSG_FASTOPEN, address, length) == 1);
    if (strcmp(how, "fastopen-sendmsg") == 0)
        return end(how, sendmsg(s, &message, MSG_FASTOPEN) == 1);
    if (strcmp(how, "fastopen-sendmmsg") == 0)
        return end(how, sendmmsg(s, &messages, 1, MSG_FASTOPEN) == 1);
    if (strcmp(how, "fastopen-option") == 0) {
        int on = 1;
        setsockopt(s, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on);
        return end(how, connect(s, address, length) == 0 && send(s, &byte, 1, 0) == 1);
    }
    if (strcmp(how, "multipath") == 0) {
        s = socket(family, SOCK_STREAM, 262);
        return end(how, s >= 0 && connects(s, address, length));
    }
    if (strcmp(how, "raw") == 0)
        return end(how, socket(AF_INET, SOCK_RAW, IPPROTO_RAW) >= 0);
    if (strcmp(how, "route") == 0) {
        unsigned char options[8] = { 131, 7, 4, 127, 0, 0, 1, 0 };
        return end(how, setsockopt(s, IPPROTO_IP, IP_OPTIONS, options, sizeof options) == 0);
    }
    if (strcmp(how, "listen-race") == 0)
        return listen_race();
    if (strcmp(how, "listen-after-end") == 0) {
        // The end of a connection clears the address that the system chose.
        struct sockaddr none = { .sa_family = AF_UNSPEC };
        int first = connects(s, address, length);
        return end(how, first && connect(s, &none, sizeof none) == 0 && listen(s, 1) == 0);
    }
    if (strcmp(how, "listen-after-shutdown") == 0) {
        fcntl(s, F_SETFL, O_NONBLOCK);
        connect(s, address, length);
        shutdown(s, SHUT_RDWR);
        return end(how, listen(s, 1) == 0 || (close(s), listen(socket(family, SOCK_STREAM, 0), 1) == 0));
    }
    if (strcmp(how, "listen-copy") == 0) {
        int copy = dup(s);
        return end(how, bind(s, address, length) == 0 && listen(copy, 1) == 0);
    }
    if (strcmp(how, "listen-child") == 0) {
        if (bind(s, address, length) != 0)
            return end(how, 0);
        if (fork() == 0)
            _exit(listen(s, 1) != 0);
        int status;
        wait(&status);
        return end(how, status == 0);
    }
    if (strcmp(how, "listen-twice") == 0)
        return end(how, bind(s, address, length) == 0 && (listen(s, 1), listen(s, 2)) == 0);
    if (strcmp(how, "listen-untied") == 0) {
        // A socket that listens for this machine is tied to all interfaces again.
        struct sockaddr_in here = v4("127.0.0.1", "0");
        int all = 0;
        if (bind(s, (struct sockaddr *)&here, sizeof here) != 0 || listen(s, 1) != 0)
            return 0;
        return end(how, setsockopt(s, SOL_SOCKET, 62 /* SO_BINDTOIFINDEX */, &all, sizeof all) == 0);
    }
    if (strcmp(how, "listen-unbound") == 0)
        return end(how, listen(s, 1) == 0);
    if (strcmp(how, "listen") == 0)
        return end(how, bind(s, address, length) == 0 && listen(s, 1) == 0);
    if (strcmp(how, "own") == 0) {
        if (bind(s, address, length) != 0 || listen(s, 1) != 0)
            return end("listen", 0);
        struct sockaddr_storage bound;
        socklen_t size = sizeof bound;
        getsockname(s, (struct sockaddr *)&bound, &size);
        return end(how, connects(socket(family, SOCK_STREAM, 0), (struct sockaddr *)&bound, size));
    }
    if (strcmp(how, "netlink") == 0) {
        struct sockaddr_un name = { .sun_family = AF_NETLINK };
        s = socket(AF_NETLINK, SOCK_RAW, 0);
        return end(how, bind(s, (struct sockaddr *)&name, 12) == 0);
    }
    if (strcmp(how, "table") == 0) {
        struct target target = { host, port };
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, own_table, &target);
        pthread_join(thread, &result);
        return result != NULL;
    }
    if (strcmp(how, "race") == 0 && count == 5)
        return race(host, port, arguments[4]);
    return 2;
}
