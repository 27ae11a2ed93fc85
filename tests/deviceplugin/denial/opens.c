/* Opens a file to read and write, and says what came of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(int count, char **words) {
    (void)count;
    printf("%s\n", open(words[1], O_RDWR) >= 0 ? "opened" : errno == EPERM ? "denied" : "failed");
    return 0;
}
