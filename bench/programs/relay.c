/*
 * The login command of a simulated node: passes its stdin and stdout to the process that answers for all nodes, with the two ends
 * of the SSH connection, and exits when that process has closed both. No byte is copied here, so that a node costs one small process.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *connection = getenv("SSH_CONNECTION");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (argc != 2 || !connection || peer < 0 || strlen(argv[1]) >= sizeof address.sun_path)
        return 2;
    strcpy(address.sun_path, argv[1]);
    if (connect(peer, (struct sockaddr *)&address, sizeof address))
        return 3;
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec text = {(char *)connection, strlen(connection)};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(2 * sizeof(int));
    memcpy(CMSG_DATA(header), (int[]){0, 1}, 2 * sizeof(int));
    if (sendmsg(peer, &message, 0) < 0)
        return 4;
    close(0);
    close(1);
    char end;
    return read(peer, &end, 1) != 0;
}
