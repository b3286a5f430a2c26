module {
  func.func @main(%arg0: tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, %arg1: tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> (tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xi8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xi8, #dhlo.shape<["n", "4"]>>) {
    %0 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %1 = "dhlo.full"() {value = "6.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %2 = "dhlo.full"() {value = "255.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %3 = "dhlo.full"() {value = "40.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %4 = "dhlo.maximum"(%arg0, %0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %5 = "dhlo.minimum"(%4, %1) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %6 = "dhlo.mul"(%5, %3) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %7 = "dhlo.round"(%6) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %8 = "dhlo.mul"(%arg0, %3) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %9 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %10 = "dhlo.maximum"(%8, %9) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %11 = "dhlo.full"() {value = "240.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %12 = "dhlo.minimum"(%10, %11) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %13 = "dhlo.nearest"(%12) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %14 = "dhlo.convert"(%13) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %15 = "dhlo.full"() {value = "128.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %16 = "dhlo.convert"(%arg1) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %17 = "dhlo.mul"(%16, %3) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %18 = "dhlo.full"() {value = "-128.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %19 = "dhlo.maximum"(%17, %18) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %20 = "dhlo.full"() {value = "127.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %21 = "dhlo.minimum"(%19, %20) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %22 = "dhlo.nearest"(%21) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %23 = "dhlo.full"() {value = "128"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %24 = "dhlo.add"(%22, %23) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %25 = "dhlo.convert"(%24) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %26 = "dhlo.full"() {value = "-128.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %27 = "dhlo.maximum"(%17, %26) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %28 = "dhlo.full"() {value = "127.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %29 = "dhlo.minimum"(%27, %28) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %30 = "dhlo.nearest"(%29) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %31 = "dhlo.convert"(%30) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi8, #dhlo.shape<["n", "4"]>>
    %32 = "dhlo.mul"(%arg0, %3) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %33 = "dhlo.round"(%32) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %34 = "dhlo.add"(%33, %15) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %35 = "dhlo.maximum"(%34, %0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %36 = "dhlo.minimum"(%35, %2) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %37 = "dhlo.convert"(%36) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %38 = "dhlo.full"() {value = "254.5"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %39 = "dhlo.maximum"(%7, %0) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %40 = "dhlo.minimum"(%39, %38) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %41 = "dhlo.convert"(%40) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %42 = "dhlo.full"() {value = "0.1"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %43 = "dhlo.mul"(%16, %42) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %44 = "dhlo.mul"(%43, %42) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %45 = "dhlo.nearest"(%44) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %46 = "dhlo.full"() {value = "128"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %47 = "dhlo.add"(%45, %46) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %48 = "dhlo.full"() {value = "128"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %49 = "dhlo.maximum"(%47, %48) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %50 = "dhlo.full"() {value = "129"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %51 = "dhlo.minimum"(%49, %50) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %52 = "dhlo.convert"(%51) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %53 = "dhlo.nearest"(%43) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %54 = "dhlo.full"() {value = "-128"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %55 = "dhlo.maximum"(%53, %54) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %56 = "dhlo.full"() {value = "127"} : () -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %57 = "dhlo.minimum"(%55, %56) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>, tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi32, #dhlo.shape<["n", "4"]>>
    %58 = "dhlo.convert"(%57) : (tensor<?x4xi32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xi8, #dhlo.shape<["n", "4"]>>
    return %14, %25, %31, %37, %41, %52, %58 : tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xi8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xi8, #dhlo.shape<["n", "4"]>>
  }
}
