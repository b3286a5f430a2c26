module {
  func.func @main(%arg0: tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>, %arg1: tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, %arg2: tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) {
    %0 = "dhlo.weight"() {name_ = "v"} : () -> tensor<4x4x1x1xbf16>
    %1 = "dhlo.weight"() {name_ = "s"} : () -> tensor<4xf32>
    %2 = "dhlo.weight"() {name_ = "t"} : () -> tensor<4xf32>
    %3 = "dhlo.convert"(%0) : (tensor<4x4x1x1xbf16>) -> tensor<4x4x1x1xf32>
    %4 = "dhlo.convert"(%arg0) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %5 = "dhlo.broadcast"(%1) {dims = [1]} : (tensor<4xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %6 = "dhlo.broadcast"(%2) {dims = [1]} : (tensor<4xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %7 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %8 = "dhlo.mul"(%7, %5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %9 = "dhlo.add"(%8, %6) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %10 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %11 = "dhlo.add"(%10, %6) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %12 = "dhlo.mul"(%5, %11) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %13 = "dhlo.conv"(%arg1, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %14 = "dhlo.convert"(%13) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %15 = "dhlo.convert"(%14) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %16 = "dhlo.mul"(%15, %5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %17 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %18 = "dhlo.convert"(%17) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %19 = "dhlo.convert"(%18) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %20 = "dhlo.mul"(%19, %5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %21 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %22 = "dhlo.convert"(%21) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %23 = "dhlo.convert"(%22) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %24 = "dhlo.mul"(%23, %arg2) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %25 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %26 = "dhlo.convert"(%arg0) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %27 = "dhlo.add"(%25, %26) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %28 = "dhlo.convert"(%27) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    %29 = "dhlo.convert"(%28) : (tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %30 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %31 = "dhlo.maximum"(%29, %30) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %32 = "dhlo.conv"(%4, %3) {dilation = [1, 1], groups = 1 : i64, output_padding = [0, 0], padding = [0, 0], stride = [1, 1], transposed = false} : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<4x4x1x1xf32>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %33 = "dhlo.mul"(%32, %5) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %34 = "dhlo.add"(%33, %6) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %35 = "dhlo.sigmoid_short"(%34) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %36 = "dhlo.mul"(%34, %35) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>
    %37 = "dhlo.convert"(%36) : (tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>) -> tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
    return %9, %12, %16, %20, %18, %24, %31, %37 : tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xf32, #dhlo.shape<["n", "4", "m", "m"]>>, tensor<?x4x?x?xbf16, #dhlo.shape<["n", "4", "m", "m"]>>
  }
}
