// SPDX-License-Identifier: MIT OR Apache-2.0
// A server of Netty's io_uring transport sends back what its client sends, 4 MiB, on loopback; the bytes are compared.
//
// usage: java -cp 'jars/*' Echo.java

import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.uring.IoUring;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringServerSocketChannel;
import io.netty.channel.uring.IoUringSocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;

public class Echo {
  static final int BYTES = 4 << 20;

  static class Server extends ChannelInboundHandlerAdapter {
    @Override
    public boolean isSharable() {
      return true;
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
      context.writeAndFlush(message);
    }
  }

  static class Client extends ChannelInboundHandlerAdapter {
    final byte[] received = new byte[BYTES];
    int length;

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
      ByteBuf bytes = (ByteBuf) message;
      int count = bytes.readableBytes();
      bytes.readBytes(received, length, count);
      bytes.release();
      length += count;
      if (length == BYTES) context.close();
    }
  }

  public static void main(String[] arguments) throws Exception {
    IoUring.ensureAvailability();
    byte[] sent = new byte[BYTES];
    new Random(7).nextBytes(sent);
    Client client = new Client();
    EventLoopGroup group = new MultiThreadIoEventLoopGroup(2, IoUringIoHandler.newFactory());
    Channel server = new ServerBootstrap().group(group).channel(IoUringServerSocketChannel.class)
        .childHandler(new Server()).bind("127.0.0.1", 0).sync().channel();
    Channel connection = new Bootstrap().group(group).channel(IoUringSocketChannel.class)
        .handler(client).connect(server.localAddress()).sync().channel();
    connection.writeAndFlush(Unpooled.wrappedBuffer(sent)).sync();
    connection.closeFuture().sync();
    server.close().sync();
    group.shutdownGracefully(0, 1, TimeUnit.SECONDS).sync();
    if (!Arrays.equals(sent, client.received)) throw new AssertionError("other bytes came back");
    System.out.println(BYTES + " bytes came back as they were sent");
  }
}
