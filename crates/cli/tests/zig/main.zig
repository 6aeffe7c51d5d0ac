//! A static Zig program with rings on two threads: a server that accepts, receives and sends, and its client. Then it
//! writes and reads a file. Its output is the same natively and as a guest.

const std = @import("std");
const linux = std.os.linux;
const posix = std.posix;

const rounds = 200;

fn result(ring: *linux.IoUring) !usize {
    _ = try ring.submit_and_wait(1);
    const cqe = try ring.copy_cqe();
    return switch (cqe.err()) {
        .SUCCESS => @intCast(cqe.res),
        else => |error_number| {
            std.debug.print("{s}\n", .{@tagName(error_number)});
            return error.Refused;
        },
    };
}

fn serve(listener: posix.socket_t) !void {
    var ring = try linux.IoUring.init(8, 0);
    defer ring.deinit();
    _ = try ring.accept(1, listener, null, null, 0);
    const client: posix.socket_t = @intCast(try result(&ring));
    defer posix.close(client);
    var buffer: [64]u8 = undefined;
    while (true) {
        _ = try ring.recv(2, client, .{ .buffer = &buffer }, 0);
        const bytes = try result(&ring);
        if (bytes == 0) return;
        _ = try ring.send(3, client, buffer[0..bytes], 0);
        _ = try result(&ring);
    }
}

fn server(listener: posix.socket_t) void {
    serve(listener) catch |fault| std.debug.panic("{s}", .{@errorName(fault)});
}

pub fn main() !void {
    const address = try std.net.Address.parseIp4("127.0.0.1", 0);
    const listener = try posix.socket(posix.AF.INET, posix.SOCK.STREAM, 0);
    try posix.bind(listener, &address.any, address.getOsSockLen());
    try posix.listen(listener, 1);
    var bound: posix.sockaddr align(4) = undefined;
    var length: posix.socklen_t = @sizeOf(posix.sockaddr);
    try posix.getsockname(listener, &bound, &length);
    const thread = try std.Thread.spawn(.{}, server, .{listener});

    var ring = try linux.IoUring.init(8, 0);
    defer ring.deinit();
    const socket = try posix.socket(posix.AF.INET, posix.SOCK.STREAM, 0);
    _ = try ring.connect(1, socket, &bound, length);
    _ = try result(&ring);
    var sum: usize = 0;
    for (0..rounds) |round| {
        var buffer: [64]u8 = undefined;
        const text = try std.fmt.bufPrint(&buffer, "message {d}", .{round});
        _ = try ring.send(2, socket, text, 0);
        _ = try result(&ring);
        var answer: [64]u8 = undefined;
        _ = try ring.recv(3, socket, .{ .buffer = &answer }, 0);
        const bytes = try result(&ring);
        if (!std.mem.eql(u8, text, answer[0..bytes])) return error.Different;
        sum += bytes;
    }
    posix.close(socket);
    thread.join();

    const file = try posix.memfd_create("file", 0);
    _ = try ring.write(4, file, "what is written", 0);
    const written = try result(&ring);
    var back: [32]u8 = undefined;
    _ = try ring.read(5, file, .{ .buffer = &back }, 0);
    const read = try result(&ring);
    var timeout = linux.kernel_timespec{ .tv_sec = 0, .tv_nsec = 1_000_000 };
    _ = try ring.timeout(6, &timeout, 0, 0);
    _ = try ring.submit_and_wait(1);
    const late = try ring.copy_cqe();
    std.debug.print("{d} bytes came back, {d} written, \"{s}\", {s}\n", .{ sum, written, back[0..read], @tagName(late.err()) });
    posix.exit(3);
}
